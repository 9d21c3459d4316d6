/* listen_socket.h: the socket that the server accepts connections on. */
#ifndef SERVER_HTTP_LISTEN_SOCKET_H
#define SERVER_HTTP_LISTEN_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct srv_listen_socket {
    int fd;
    uint16_t port; /* the real one, if any free one was asked for */
    bool is_ipv6, is_loopback;
    char name[80]; /* "127.0.0.1:8080" */
} srv_listen_socket;

/* False: `why` is a sentence. */
bool srv_listen_open(srv_listen_socket *listening, const char *host, uint16_t port, char *why,
                     size_t n_why);

#endif
