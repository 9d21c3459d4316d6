/* interrupt.c: the handler. */
#include "output/interrupt.h"

#include "output/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t seen;
static int bell[2] = {-1, -1}; /* a pipe: a byte for each Ctrl-C, whichever thread it came to */

static void handle(int number) {
    if (seen) { /* the work does not come to its end: as without a handler */
        cli_terminal_restore();
        signal(number, SIG_DFL);
        raise(number);
    }
    seen = 1;
    const int kept = errno;
    const ssize_t written = write(bell[1], "", 1);
    (void)written; /* a full pipe rings as well */
    errno = kept;
}

static void make_bell(void) {
    if (bell[0] >= 0 || pipe(bell) != 0)
        return;
    for (int i = 0; i < 2; i++) {
        fcntl(bell[i], F_SETFL, O_NONBLOCK);
        fcntl(bell[i], F_SETFD, FD_CLOEXEC);
    }
}

void cli_interrupt_catch(void) {
    make_bell();
    struct sigaction action = {.sa_handler = handle};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL); /* without SA_RESTART: a read of the keyboard returns too */
}

bool cli_interrupt_seen(void *unused) {
    (void)unused;
    return seen != 0;
}

void cli_interrupt_clear(void) {
    char bytes[16];
    while (bell[0] >= 0 && read(bell[0], bytes, sizeof bytes) > 0)
        continue;
    seen = 0;
}

bool cli_interrupt_wait(int fd) {
    struct pollfd both[] = {{.fd = fd, .events = POLLIN}, {.fd = bell[0], .events = POLLIN}};
    while (!seen) {
        both[0].revents = 0;
        if (poll(both, 2, -1) < 0 && errno != EINTR)
            return true; /* let the read say what is wrong */
        if (both[0].revents)
            return !seen;
    }
    return false;
}
