/* server.c: starting, serving until a signal comes, and stopping in good order. */
#include "server.h"

#include "http/access_log.h"
#include "http/api_keys.h"
#include "http/http_server.h"
#include "base/monotonic.h"
#include "base/utf8.h"
#include "http/signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* How long clients may take to read the rest of their replies before the server stops; the same
 * after a second signal: enough for those that read to be told that their requests failed. */
enum { LAST_REPLIES_MILLISECONDS = 10000, HURRIED_REPLIES_MILLISECONDS = 500 };

void srv_options_default(srv_options *options) {
    *options = (srv_options){.max_running = 16,
                             .max_prefixes = 16,
                             .max_queue = 128,
                             .chunk = 256,
                             .host = "127.0.0.1",
                             .port = 8080,
                             .max_connections = 512,
                             .max_body = (size_t)8 << 20,
                             .header_seconds = 10,
                             .body_seconds = 60,
                             .idle_seconds = 60,
                             .max_choices = 8};
}

static bool check(const srv_options *o, char *why, size_t n_why) {
    const struct {
        const char *what;
        int64_t value, least;
    } all[] = {{"the number of connections", o->max_connections, 1},
               {"the size of a body", (int64_t)o->max_body, 1},
               {"the time for headers", o->header_seconds, 1},
               {"the time for a body", o->body_seconds, 1},
               {"the time of an idle connection", o->idle_seconds, 1},
               {"the number of choices", o->max_choices, 1},
               {"the number of caches", o->n_caches, 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value < all[i].least) {
            snprintf(why, n_why, "%s must be at least %lld", all[i].what, (long long)all[i].least);
            return false;
        }
    for (const char *at = o->model_name; *at;) { /* it is in every reply */
        const int n = srv_utf8_length(at, strlen(at));
        if (n <= 0) {
            snprintf(why, n_why, "the model's name is not UTF-8: give it another (--name NAME)");
            return false;
        }
        at += n;
    }
    if (o->max_body > SIZE_MAX / 64) {
        snprintf(why, n_why, "the size of a body is too large");
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------ serving */

typedef struct server {
    const srv_options *options;
    srv_log *log;
    srv_api_keys *keys;
    srv_sched *sched;
    srv_http *http;
} server;

/* The log of the server that runs, for threads that are not its own. */
static struct {
    pthread_mutex_t lock;
    srv_log *log; /* NULL: none runs */
} notes = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void set_notes(srv_log *log) {
    pthread_mutex_lock(&notes.lock);
    notes.log = log;
    pthread_mutex_unlock(&notes.lock);
}

bool srv_log_note(const char *line) {
    pthread_mutex_lock(&notes.lock);
    const bool is_running = notes.log != NULL;
    if (is_running)
        srv_log_line(notes.log, "%s", line);
    pthread_mutex_unlock(&notes.lock);
    return is_running;
}

static void log_start(const server *s) {
    char caches[256] = "";
    for (int32_t i = 0; i < s->options->n_caches; i++)
        snprintf(caches + strlen(caches), sizeof caches - strlen(caches), "%s%s", i ? "," : "",
                 s->options->caches[i].kv);
    srv_log_line(s->log, "quire %s listens on http://%s model=%s kv=%s exact=%s keys=%d",
                 quire_version(), s->http->listening.name, s->options->model_name, caches,
                 s->options->exact ? "yes" : "no", s->keys ? srv_api_keys_count(s->keys) : 0);
    if (s->keys && srv_api_keys_warning(s->keys))
        srv_log_line(s->log, "%s", srv_api_keys_warning(s->keys));
    if (!s->keys && !s->http->listening.is_loopback)
        srv_log_line(s->log, "warning: other machines may use this server without an API key");
}

static void reload(server *s) {
    srv_log_reopen(s->log);
    char why[256];
    if (!s->keys) {
        srv_log_line(s->log, "SIGHUP: the log was opened again");
    } else if (srv_api_keys_reload(s->keys, why, sizeof why)) {
        srv_log_line(s->log, "SIGHUP: the log was opened again, %d API keys were read",
                     srv_api_keys_count(s->keys));
        if (srv_api_keys_warning(s->keys))
            srv_log_line(s->log, "%s", srv_api_keys_warning(s->keys));
    } else {
        srv_log_line(s->log, "SIGHUP: the old API keys stay valid: %s", why);
    }
}

static void serve(server *s) {
    for (;;) {
        const int number = srv_signals_wait(-1);
        if (number == SIGTERM || number == SIGINT)
            return;
        if (number == SIGHUP)
            reload(s);
    }
}

/* ------------------------------------------------------------------ stopping */

/* Waits up to `milliseconds`. True: a signal came that says stop now. */
static bool told_to_hurry(server *s, int milliseconds) {
    const int number = srv_signals_wait(milliseconds);
    if (number == SIGHUP)
        reload(s);
    return number == SIGTERM || number == SIGINT;
}

static void drain(server *s) {
    /* In this order: once /health fails, or the log says so, no new work is accepted. */
    srv_sched_drain(s->sched, false);
    srv_http_drain(s->http);
    srv_log_line(s->log, "stopping: no new work; a second signal stops at once");
    bool hurry = false;
    while (!srv_sched_is_over(s->sched)) {
        if (told_to_hurry(s, 50) && !hurry) {
            hurry = true;
            srv_log_line(s->log, "stopping at once");
            srv_sched_drain(s->sched, true);
        }
    }
    const double until =
        srv_monotonic() + 1e-3 * (hurry ? HURRIED_REPLIES_MILLISECONDS : LAST_REPLIES_MILLISECONDS);
    while (srv_http_busy(s->http) > 0 && srv_monotonic() < until && !told_to_hurry(s, 20))
        ;
}

bool srv_run(const srv_options *options, char *why, size_t n_why) {
    server s = {.options = options};
    srv_listen_socket listening;
    if (!check(options, why, n_why))
        return false;
    if (!srv_signals_open()) {
        snprintf(why, n_why, "signals cannot be handled: %s", strerror(errno));
        return false;
    }
    bool ok = false;
    s.log = srv_log_open(options->log_path, why, n_why);
    if (!s.log)
        goto end;
    set_notes(s.log);
    if (options->api_keys && !(s.keys = srv_api_keys_open(options->api_keys, why, n_why)))
        goto end;
    if (!srv_listen_open(&listening, options->host, options->port, why, n_why))
        goto end;
    if (!srv_sched_start(&s.sched, options, why, n_why)) {
        s.sched = NULL;
        close(listening.fd);
        goto end;
    }
    s.http = srv_http_start(options, s.sched, s.log, s.keys, &listening, why, n_why);
    if (!s.http) {
        srv_sched_drain(s.sched, true);
        goto end;
    }
    log_start(&s);
    serve(&s);
    drain(&s);
    srv_http_stop(s.http);
    srv_log_line(s.log, "stopped");
    ok = true;
end:
    srv_sched_free(s.sched);
    srv_api_keys_close(s.keys);
    set_notes(NULL);
    srv_log_close(s.log);
    return ok;
}
