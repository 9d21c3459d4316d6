/* peer.h: the other end of a connection. */
#ifndef SERVER_HTTP_PEER_H
#define SERVER_HTTP_PEER_H

#include <stdbool.h>
#include <stddef.h>

struct sockaddr;

/* Whether the client has closed its connection, or only its sending side: a client that sends a
 * request and hangs up is one that no longer waits. Reads nothing from the socket. */
bool srv_peer_is_gone(int socket);
/* "127.0.0.1:5512" or "[::1]:5512"; "-" if the address is unknown. */
void srv_peer_name(const struct sockaddr *address, char *name, size_t n_name);
/* Whether an address reaches this machine only: 127.0.0.0/8, ::1, or the former inside IPv6. */
bool srv_address_is_loopback(const struct sockaddr *address);

#endif
