/* Reads the URL of a Redis server. */
#include "store/redis_url.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { URL_MAX = 2000 };

static const struct scheme {
    const char *text;
    bool has_tls, is_cluster;
} SCHEMES[] = {{"redis://", false, false},
               {"rediss://", true, false},
               {"redis+cluster://", false, true},
               {"rediss+cluster://", true, true}};

static const struct scheme *scheme_of(const char *place) {
    for (size_t i = 0; i < sizeof SCHEMES / sizeof SCHEMES[0]; i++)
        if (strncmp(place, SCHEMES[i].text, strlen(SCHEMES[i].text)) == 0)
            return &SCHEMES[i];
    return NULL;
}

bool quire__redis_is_url(const char *place) { return scheme_of(place) != NULL; }

/* The host begins behind the last @ before the path: a password may contain one. */
static const char *skip_user(const char *rest) {
    const char *end = rest + strcspn(rest, "/?"), *host = rest;
    for (const char *at = rest; at < end; at++)
        if (*at == '@')
            host = at + 1;
    return host;
}

void quire__redis_url_text(const char *place, char *text, size_t n) {
    const struct scheme *s = scheme_of(place);
    /* A password that was written with a slash makes what follows it look like a path: show
     * nothing before the last @ of the whole text. */
    const char *host = strrchr(place, '@') ? strrchr(place, '@') + 1 : place + strlen(s->text);
    size_t length = strcspn(host, "?");
    const char *port = *host == '[' ? strchr(host, ']') : host;
    port = port ? strchr(port, ':') : NULL;
    if (port && port < host + length && !isdigit((unsigned char)port[1]))
        length = (size_t)(port - host); /* a password whose host was forgotten */
    snprintf(text, n, "%s%.*s", s->text, (int)length, host);
}

static bool hex_digit(char c, int *value) {
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
    *value = at ? (int)(at - digits) : 0;
    return at != NULL;
}

/* Copies n characters, with %XX as a byte. */
static bool decode(const char *from, size_t n, char *to, size_t capacity) {
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        if (c == '%') {
            int high, low;
            if (i + 2 >= n || !hex_digit(from[i + 1], &high) || !hex_digit(from[i + 2], &low))
                return false;
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (c == '\0' || length + 1 >= capacity)
            return false;
        to[length++] = c;
    }
    to[length] = '\0';
    return true;
}

static bool read_number(const char *text, size_t n, long least, long most, int32_t *value) {
    char digits[12], *end;
    if (n == 0 || n >= sizeof digits || !isdigit((unsigned char)*text))
        return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    const long number = strtol(digits, &end, 10);
    *value = (int32_t)number;
    return *end == '\0' && number >= least && number <= most;
}

static quire_status wrong(const char *place, const char *what) {
    char text[QUIRE_STORE_PLACE_TEXT];
    quire__redis_url_text(place, text, sizeof text);
    return quire__fail(QUIRE_E_INVALID,
                       "'%.120s': %s; the form is "
                       "redis://[USER:PASSWORD@]HOST[:PORT][/DB][?ttl=SECONDS&timeout=MS]",
                       text, what);
}

/* ------------------------------------------------------------------ the password */

static quire_status read_password(const char *path, quire_redis_url *url) {
    FILE *file = fopen(path, "r");
    if (!file)
        return quire__fail(QUIRE_E_IO, "the file of the Redis password, '%.200s': %s", path,
                           strerror(errno));
    char line[sizeof url->password + 2] = "";
    const bool got = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    if (!got || !line[0] || strlen(line) >= sizeof url->password)
        return quire__fail(QUIRE_E_INVALID,
                           "the first line of '%.200s' is not a password: it is empty or too long",
                           path);
    strcpy(url->password, line);
    return QUIRE_OK;
}

/* ------------------------------------------------------------------ parts */

static quire_status read_user(const char *place, const char *from, const char *end,
                              quire_redis_url *url) {
    if (from == end)
        return QUIRE_OK;
    end--; /* the @ */
    const char *colon = memchr(from, ':', (size_t)(end - from));
    const char *user_end = colon ? colon : end;
    if (!decode(from, (size_t)(user_end - from), url->user, sizeof url->user) ||
        (colon &&
         !decode(colon + 1, (size_t)(end - colon - 1), url->password, sizeof url->password)))
        return wrong(place, "user or password is too long, or has a % without two digits");
    return QUIRE_OK;
}

static quire_status read_host(const char *place, const char *from, size_t n, quire_redis_url *url) {
    const bool in_brackets = n > 0 && *from == '['; /* IPv6 */
    const char *host = from + in_brackets;
    const char *end = in_brackets ? memchr(host, ']', n - 1) : memchr(host, ':', n);
    if (in_brackets && !end)
        return wrong(place, "the ] of its address is missing");
    end = end ? end : from + n;
    if (end == host || (size_t)(end - host) >= sizeof url->host)
        return wrong(place, "it has no host");
    memcpy(url->host, host, (size_t)(end - host));
    end += in_brackets;
    strcpy(url->port, "6379");
    if (end == from + n)
        return QUIRE_OK;
    int32_t port;
    if (*end != ':' || !read_number(end + 1, (size_t)(from + n - end - 1), 1, 65535, &port))
        return wrong(place, "the port is not a number from 1 to 65535");
    snprintf(url->port, sizeof url->port, "%d", (int)port);
    return QUIRE_OK;
}

static bool is_prefix(const char *text) {
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && !strchr(":_.{}-", *text))
            return false;
    return true;
}

static quire_status read_parameter(const char *place, const char *name, size_t n_name,
                                   const char *value, size_t n, quire_redis_url *url) {
    struct {
        const char *name;
        char *to;
        size_t capacity;
    } texts[] = {{"cacert", url->ca_file, sizeof url->ca_file},
                 {"cert", url->cert_file, sizeof url->cert_file},
                 {"key", url->key_file, sizeof url->key_file},
                 {"prefix", url->prefix, sizeof url->prefix}};
    char path[QUIRE_REDIS_FILE];
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (strlen(texts[i].name) == n_name && memcmp(texts[i].name, name, n_name) == 0)
            return decode(value, n, texts[i].to, texts[i].capacity) && is_prefix(url->prefix)
                       ? QUIRE_OK
                       : wrong(place, "a parameter is too long, or prefix has characters other "
                                      "than letters, digits and :_.{}-");
    if (n_name == 3 && memcmp(name, "ttl", 3) == 0)
        return read_number(value, n, 1, 2000000000, &url->ttl_seconds)
                   ? QUIRE_OK
                   : wrong(place, "ttl is not a number of seconds");
    if (n_name == 7 && memcmp(name, "timeout", 7) == 0)
        return read_number(value, n, 10, 600000, &url->timeout_millis)
                   ? QUIRE_OK
                   : wrong(place, "timeout is not 10 to 600000 milliseconds");
    if (n_name == 13 && memcmp(name, "password_file", 13) == 0)
        return decode(value, n, path, sizeof path) ? read_password(path, url)
                                                   : wrong(place, "password_file is too long");
    return wrong(place, "it has a parameter other than ttl, timeout, prefix, password_file, "
                        "cacert, cert and key");
}

quire_status quire__redis_url_read(const char *place, quire_redis_url *url) {
    const struct scheme *s = scheme_of(place);
    *url = (quire_redis_url){.has_tls = s->has_tls,
                             .is_cluster = s->is_cluster,
                             .timeout_millis = 1000,
                             .prefix = "quire:1:"};
    if (strlen(place) > URL_MAX)
        return wrong(place, "it is too long");
    const char *user = place + strlen(s->text), *host = skip_user(user);
    QUIRE_TRY(read_user(place, user, host, url));
    const char *path = host + strcspn(host, "/?");
    QUIRE_TRY(read_host(place, host, (size_t)(path - host), url));
    const char *query = path + strcspn(path, "?");
    if (query - path > 1 &&
        !read_number(path + 1, (size_t)(query - path - 1), 0, 1000000, &url->db))
        return wrong(place, "what follows the host is not the number of a database (write / in a "
                            "password as %2F)");
    if (url->is_cluster && url->db != 0)
        return wrong(place, "a cluster has database 0 only");
    while (*query) {
        const char *name = query + 1;
        const size_t n = strcspn(name, "&");
        const char *equals = memchr(name, '=', n);
        if (!equals)
            return wrong(place, "a parameter has no value");
        QUIRE_TRY(read_parameter(place, name, (size_t)(equals - name), equals + 1,
                                 n - (size_t)(equals + 1 - name), url));
        query = name + n;
    }
    const char *password = getenv("QUIRE_REDIS_PASSWORD");
    if (!url->password[0] && password && *password) {
        if (strlen(password) >= sizeof url->password)
            return wrong(place, "QUIRE_REDIS_PASSWORD is too long");
        strcpy(url->password, password);
    }
    return QUIRE_OK;
}
