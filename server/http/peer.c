/* peer.c: see peer.h. */
#define _GNU_SOURCE /* POLLRDHUP */
#include "http/peer.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

bool srv_peer_is_gone(int socket) {
    short wanted = 0;
#ifdef POLLRDHUP
    wanted = POLLRDHUP; /* also if unread bytes, such as a pipelined request, precede the end */
#endif
    struct pollfd p = {.fd = socket, .events = wanted};
    if (poll(&p, 1, 0) > 0 && (p.revents & (wanted | POLLHUP | POLLERR | POLLNVAL)))
        return true;
    char byte;
    ssize_t n = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

static socklen_t address_size(const struct sockaddr *address) {
    return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

void srv_peer_name(const struct sockaddr *address, char *name, size_t n_name) {
    char host[64], port[8];
    if (!address || getnameinfo(address, address_size(address), host, sizeof host, port,
                                sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(name, n_name, "-");
    else
        snprintf(name, n_name, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

bool srv_address_is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *four = (const void *)address;
        return ntohl(four->sin_addr.s_addr) >> 24 == 127;
    }
    if (address->sa_family != AF_INET6)
        return false;
    const struct sockaddr_in6 *six = (const void *)address;
    return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) && six->sin6_addr.s6_addr[12] == 127);
}
