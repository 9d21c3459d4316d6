/* listen_socket.c: see listen_socket.h. */
#include "http/listen_socket.h"

#include "http/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool listen_at(int fd, const struct addrinfo *address) {
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const int flags = fcntl(fd, F_GETFL);
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && flags >= 0 &&
           fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
           bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
}

static void describe(srv_listen_socket *listening) {
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    if (getsockname(listening->fd, (struct sockaddr *)&address, &n) != 0)
        return;
    listening->is_ipv6 = address.ss_family == AF_INET6;
    listening->port = ntohs(listening->is_ipv6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
    listening->is_loopback = srv_address_is_loopback((struct sockaddr *)&address);
    srv_peer_name((struct sockaddr *)&address, listening->name, sizeof listening->name);
}

bool srv_listen_open(srv_listen_socket *listening, const char *host, uint16_t port, char *why,
                     size_t n_why) {
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    const int failed = getaddrinfo(host, service, &hints, &found);
    if (failed) {
        snprintf(why, n_why, "%s is not an address of this machine: %s", host,
                 gai_strerror(failed));
        return false;
    }
    *listening = (srv_listen_socket){.fd = -1};
    int reason = EADDRNOTAVAIL;
    for (struct addrinfo *a = found; a && listening->fd < 0; a = a->ai_next) {
        const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd >= 0 && listen_at(fd, a)) {
            listening->fd = fd;
            break;
        }
        reason = errno;
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(found);
    if (listening->fd < 0) {
        snprintf(why, n_why, "cannot listen on %s port %u: %s", host, port, strerror(reason));
        return false;
    }
    describe(listening);
    return true;
}
