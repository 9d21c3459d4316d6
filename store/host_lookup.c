#include "store/host_lookup.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/thread.h"

static void find(const char *name, const char *port, int flags, quire_host *host) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
    struct addrinfo *found = NULL;
    memset(host, 0, sizeof *host);
    host->error = getaddrinfo(name, port, &hints, &found);
    if (host->error != 0)
        return;
    for (const struct addrinfo *a = found; a && host->n_addresses < QUIRE_HOST_ADDRESSES;
         a = a->ai_next) {
        quire_host_address *to = &host->address[host->n_addresses];
        if (a->ai_addrlen > sizeof to->bytes)
            continue;
        to->family = a->ai_family;
        to->n_bytes = a->ai_addrlen;
        memcpy(to->bytes, a->ai_addr, a->ai_addrlen);
        host->n_addresses++;
    }
    freeaddrinfo(found);
    if (host->n_addresses == 0)
        host->error = EAI_NONAME;
}

bool quire__host_of_number(const char *name, const char *port, quire_host *host) {
    find(name, port, AI_NUMERICHOST, host);
    return host->error == 0;
}

/* ------------------------------------------------------------------ by a thread */

typedef struct task {
    int to;
    char name[256], port[8];
} task;

/* The result fits into an empty pipe. If nobody waits for it any more, the write fails: the thread
 * gets no SIGPIPE. */
static void *look_up(void *arg) {
    task *t = arg;
    quire_host host;
    find(t->name, t->port, 0, &host);
    while (write(t->to, &host, sizeof host) < 0 && errno == EINTR)
        ;
    close(t->to);
    free(t);
    return NULL;
}

int quire__lookup_start(const char *name, const char *port) {
    int ends[2];
    task *t = malloc(sizeof *t);
    if (!t || pipe(ends) != 0) {
        free(t);
        return -1;
    }
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    t->to = ends[1];
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->port, sizeof t->port, "%s", port);
    pthread_t thread;
    const int error = quire__thread_start(&thread, look_up, t);
    if (error == 0) {
        pthread_detach(thread);
        return ends[0];
    }
    close(ends[0]);
    close(ends[1]);
    free(t);
    errno = error;
    return -1;
}

void quire__lookup_end(int lookup, quire_host *host) {
    ssize_t n;
    while ((n = read(lookup, host, sizeof *host)) < 0 && errno == EINTR)
        ;
    if (n != sizeof *host)
        *host = (quire_host){.error = EAI_AGAIN};
    close(lookup);
}
