/* TLS for a link, by OpenSSL; a build without it says so. */
#include "store/redis_link.h"

#if QUIRE_REDIS_TLS

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>

struct quire_tls {
    SSL_CTX *context;
    SSL *ssl;
    BIO_METHOD *method;
    int fd;
    bool is_closed; /* the socket, by the server */
};

const char *quire__tls_missing(void) { return NULL; }

/* ------------------------------------------------------------------ sockets without SIGPIPE */

static int bio_done(BIO *bio, quire_io io, size_t n) {
    BIO_clear_retry_flags(bio);
    if (io == QUIRE_IO_DONE)
        return (int)n;
    if (io == QUIRE_IO_WAIT_READ)
        BIO_set_retry_read(bio);
    if (io == QUIRE_IO_WAIT_WRITE)
        BIO_set_retry_write(bio);
    return io == QUIRE_IO_CLOSED ? 0 : -1;
}

static int bio_read(BIO *bio, char *to, int n) {
    quire_tls *tls = BIO_get_data(bio);
    size_t done = 0;
    const quire_io io = quire__socket_read(tls->fd, to, (size_t)n, &done);
    tls->is_closed = io == QUIRE_IO_CLOSED;
    return bio_done(bio, io, done);
}

static int bio_write(BIO *bio, const char *from, int n) {
    const quire_tls *tls = BIO_get_data(bio);
    size_t done = 0;
    const quire_io io = quire__socket_write(tls->fd, from, (size_t)n, &done);
    return bio_done(bio, io, done);
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static int bio_create(BIO *bio) {
    BIO_set_init(bio, 1);
    return 1;
}

/* ------------------------------------------------------------------ opening */

static bool fail(char *why, size_t n_why, const char *what) {
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    snprintf(why, n_why, "%s%s%s", what, reason ? ": " : "", reason ? reason : "");
    ERR_clear_error();
    return false;
}

static bool set_files(quire_tls *t, const quire_redis_url *url, char *why, size_t n_why) {
    if (url->ca_file[0] ? SSL_CTX_load_verify_locations(t->context, url->ca_file, NULL) != 1
                        : SSL_CTX_set_default_verify_paths(t->context) != 1)
        return fail(why, n_why, "the certificates to trust cannot be read");
    if (url->cert_file[0] &&
        (SSL_CTX_use_certificate_chain_file(t->context, url->cert_file) != 1 ||
         SSL_CTX_use_PrivateKey_file(t->context, url->key_file, SSL_FILETYPE_PEM) != 1))
        return fail(why, n_why, "this program's certificate or key cannot be read");
    return true;
}

/* The name or address that the server's certificate must have. */
static bool set_host(quire_tls *t, const char *host) {
    uint8_t address[16];
    X509_VERIFY_PARAM *param = SSL_get0_param(t->ssl);
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1;
    return X509_VERIFY_PARAM_set1_host(param, host, 0) == 1 &&
           SSL_set_tlsext_host_name(t->ssl, host) == 1;
}

static bool set_socket(quire_tls *t) {
    t->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "quire socket");
    if (!t->method || !BIO_meth_set_read(t->method, bio_read) ||
        !BIO_meth_set_write(t->method, bio_write) || !BIO_meth_set_ctrl(t->method, bio_control) ||
        !BIO_meth_set_create(t->method, bio_create))
        return false;
    BIO *bio = BIO_new(t->method);
    if (!bio)
        return false;
    BIO_set_data(bio, t);
    SSL_set_bio(t->ssl, bio, bio);
    return true;
}

quire_tls *quire__tls_open(const quire_redis_url *url, const char *host, int fd, char *why,
                           size_t n_why) {
    quire_tls *t = calloc(1, sizeof *t);
    if (!t) {
        fail(why, n_why, "out of memory");
        return NULL;
    }
    t->fd = fd;
    t->context = SSL_CTX_new(TLS_client_method());
    bool good = t->context || fail(why, n_why, "OpenSSL cannot be used");
    if (good) {
        SSL_CTX_set_min_proto_version(t->context, TLS1_2_VERSION);
        SSL_CTX_set_verify(t->context, SSL_VERIFY_PEER, NULL);
        SSL_CTX_set_mode(t->context,
                         SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        good = set_files(t, url, why, n_why);
    }
    if (good) {
        t->ssl = SSL_new(t->context);
        good = (t->ssl && set_host(t, host) && set_socket(t)) ||
               fail(why, n_why, "OpenSSL cannot be used");
    }
    if (good)
        return t;
    quire__tls_close(t);
    return NULL;
}

void quire__tls_close(quire_tls *t) {
    if (!t)
        return;
    SSL_free(t->ssl);
    BIO_meth_free(t->method);
    SSL_CTX_free(t->context);
    free(t);
}

/* ------------------------------------------------------------------ using it */

/* A server that is killed or restarted says no goodbye in TLS. How OpenSSL reports that depends on
 * its version. */
static quire_io io_of(quire_tls *t, int rc) {
    if (t->is_closed)
        return QUIRE_IO_CLOSED;
    switch (SSL_get_error(t->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
        return QUIRE_IO_WAIT_READ;
    case SSL_ERROR_WANT_WRITE:
        return QUIRE_IO_WAIT_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return QUIRE_IO_CLOSED;
    case SSL_ERROR_SYSCALL:
        return QUIRE_IO_FAILED;
    default:
        errno = EPROTO;
        return QUIRE_IO_FAILED;
    }
}

quire_io quire__tls_handshake(quire_tls *t, char *why, size_t n_why) {
    ERR_clear_error();
    const int rc = SSL_connect(t->ssl);
    if (rc == 1)
        return QUIRE_IO_DONE;
    const quire_io io = io_of(t, rc);
    if (io != QUIRE_IO_FAILED)
        return io;
    const long verdict = SSL_get_verify_result(t->ssl);
    if (verdict != X509_V_OK)
        snprintf(why, n_why, "its certificate is not trusted (%s)",
                 X509_verify_cert_error_string(verdict));
    else
        fail(why, n_why, "the handshake failed");
    ERR_clear_error();
    return io;
}

quire_io quire__tls_read(quire_tls *t, void *to, size_t n, size_t *done) {
    ERR_clear_error();
    const int rc = SSL_read_ex(t->ssl, to, n, done);
    return rc == 1 ? QUIRE_IO_DONE : io_of(t, rc);
}

quire_io quire__tls_write(quire_tls *t, const void *from, size_t n, size_t *done) {
    ERR_clear_error();
    const int rc = SSL_write_ex(t->ssl, from, n, done);
    return rc == 1 ? QUIRE_IO_DONE : io_of(t, rc);
}

#else

const char *quire__tls_missing(void) {
    return "this library was built without TLS for Redis; install OpenSSL (Debian: libssl-dev) and "
           "build it again";
}

quire_tls *quire__tls_open(const quire_redis_url *url, const char *host, int fd, char *why,
                           size_t n_why) {
    (void)url, (void)host, (void)fd, (void)why, (void)n_why;
    return NULL; /* refused before */
}

void quire__tls_close(quire_tls *tls) { (void)tls; }

quire_io quire__tls_handshake(quire_tls *tls, char *why, size_t n_why) {
    (void)tls, (void)why, (void)n_why;
    return QUIRE_IO_FAILED;
}

quire_io quire__tls_read(quire_tls *tls, void *to, size_t n, size_t *done) {
    (void)tls, (void)to, (void)n, (void)done;
    return QUIRE_IO_FAILED;
}

quire_io quire__tls_write(quire_tls *tls, const void *from, size_t n, size_t *done) {
    (void)tls, (void)from, (void)n, (void)done;
    return QUIRE_IO_FAILED;
}

#endif
