/* signals.c: see signals.h. Handlers write the signal's number into a pipe. */
#include "http/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static int ends[2] = {-1, -1};

static void on_signal(int number) {
    const int saved = errno;
    const unsigned char byte = (unsigned char)number;
    (void)!write(ends[1], &byte, 1); /* a full pipe holds enough signals */
    errno = saved;
}

static bool take(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    return sigaction(number, &action, NULL) == 0;
}

bool srv_signals_open(void) {
    if (ends[0] < 0) {
        if (pipe(ends) != 0)
            return false;
        for (int i = 0; i < 2; i++) {
            fcntl(ends[i], F_SETFD, FD_CLOEXEC);
            fcntl(ends[i], F_SETFL, O_NONBLOCK);
        }
    }
    return take(SIGTERM, on_signal) && take(SIGINT, on_signal) && take(SIGHUP, on_signal) &&
           take(SIGPIPE, SIG_IGN);
}

int srv_signals_wait(int milliseconds) {
    struct pollfd p = {.fd = ends[0], .events = POLLIN};
    for (;;) {
        unsigned char byte;
        if (read(ends[0], &byte, 1) == 1)
            return byte;
        if (poll(&p, 1, milliseconds) == 0)
            return 0;
    }
}
