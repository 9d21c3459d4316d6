/* libFuzzer target: bytes as what a client sends, over a socket, to the HTTP layer of `quire
 * serve`. docs/TESTING.md says how to build and run it.
 *
 * The server runs in this process over the parts of tests/server/fake_parts.h. The first byte
 * chooses how the rest is sent: as it is, as the body of a request, or as a body in chunks; in one
 * piece or in several. Then the client closes its side. Whatever it was, the server must answer in
 * HTTP or close, in time, and have no job and no byte of a body left. */
#include "../server/fake_parts.h"
#include "http/access_log.h"
#include "http/http_server.h"
#include "page/page_files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { MAX_BODY = 4096, PATIENCE_SECONDS = 60 };

static const unsigned char page[] = "<!doctype html>";
const srv_page_file srv_page_files[] = {{"index.html", page, sizeof page - 1}, {0, 0, 0}};

static srv_cache cache;
static srv_options options;
static srv_sched *sched;
static srv_http *http;
static uint16_t port;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    signal(SIGPIPE, SIG_IGN);
    char why[256] = "";
    cache = (srv_cache){"k8v4", fake_session_create()};
    srv_options_default(&options);
    options.model_name = "fake";
    options.caches = &cache;
    options.n_caches = 1;
    options.max_body = MAX_BODY;
    options.log_prompts = true;
    srv_listen_socket listening;
    CHECK(srv_listen_open(&listening, "127.0.0.1", 0, why, sizeof why));
    struct sockaddr_in address;
    socklen_t n = sizeof address;
    CHECK(getsockname(listening.fd, (struct sockaddr *)&address, &n) == 0);
    port = ntohs(address.sin_port);
    srv_log *log = srv_log_open("/dev/null", why, sizeof why);
    CHECK(log && srv_sched_start(&sched, &options, why, sizeof why));
    http = srv_http_start(&options, sched, log, NULL, &listening, why, sizeof why);
    CHECK(http != NULL);
    return 0;
}

static int connect_to_server(void) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = PATIENCE_SECONDS};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    return fd;
}

/* The server may have closed already: then the rest is not sent. */
static void send_bytes(int fd, const void *bytes, size_t n) {
    for (const char *at = bytes; n > 0;) {
        const ssize_t sent = send(fd, at, n, 0);
        if (sent <= 0)
            return;
        at += sent;
        n -= (size_t)sent;
    }
}

static void send_text(int fd, const char *text) { send_bytes(fd, text, strlen(text)); }

static void send_body(int fd, const char *path, const uint8_t *data, size_t size) {
    char head[256];
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path, size);
    send_text(fd, head);
    send_bytes(fd, data, size);
}

/* Chunks of sizes that the bytes themselves give. */
static void send_chunks(int fd, const char *path, const uint8_t *data, size_t size) {
    char head[256];
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", path);
    send_text(fd, head);
    while (size > 0) {
        const size_t wanted = 1 + data[0] % 64, n = wanted < size ? wanted : size;
        snprintf(head, sizeof head, "%zx\r\n", n);
        send_text(fd, head);
        send_bytes(fd, data, n);
        send_text(fd, "\r\n");
        data += n;
        size -= n;
    }
    send_text(fd, "0\r\n\r\n");
}

/* What comes back is HTTP, or nothing. */
static void read_reply(int fd) {
    static const char start[] = "HTTP/1.";
    char bytes[8192];
    size_t n_all = 0;
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {
        for (size_t i = 0; i < (size_t)n && n_all + i < sizeof start - 1; i++)
            CHECK(bytes[i] == start[n_all + i]);
        n_all += (size_t)n;
    }
    CHECK(n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)); /* it has not kept us waiting */
}

static void check_nothing_is_left(void) {
    const time_t until = time(NULL) + PATIENCE_SECONDS;
    srv_counts counts = {0};
    do
        srv_sched_counts(sched, &counts);
    while ((counts.running > 0 || atomic_load(&http->bodies.used) > 0) && time(NULL) < until);
    CHECK(counts.running == 0 && atomic_load(&http->bodies.used) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/tokenize"};
    if (size < 1)
        return 0;
    const uint8_t how = data[0];
    const char *path = paths[how / 4 % 3];
    const int fd = connect_to_server();
    data++;
    size--;
    switch (how % 4) {
    case 0:
        send_bytes(fd, data, size);
        break;
    case 1: /* headers that come in two pieces */
        send_bytes(fd, data, size / 2);
        send_bytes(fd, data + size / 2, size - size / 2);
        break;
    case 2:
        send_body(fd, path, data, size);
        break;
    default:
        send_chunks(fd, path, data, size);
    }
    shutdown(fd, SHUT_WR);
    read_reply(fd);
    close(fd);
    check_nothing_is_left();
    return 0;
}
