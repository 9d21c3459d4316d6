/* interrupt.c: the SIGINT handler, which sets a flag and writes to a pipe. */
#include "output/interrupt.h"

#include "output/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t seen;
static int wake[2] = {-1, -1}; /* a pipe with a byte per Ctrl-C: wakes poll in any thread */

static void handle(int number) {
    if (seen) { /* the work did not stop after the first: end the program */
        cli_terminal_restore();
        signal(number, SIG_DFL);
        raise(number);
    }
    seen = 1;
    const int saved_errno = errno;
    const ssize_t written = write(wake[1], "", 1);
    (void)written; /* if the pipe is full, poll wakes anyway */
    errno = saved_errno;
}

static void make_pipe(void) {
    if (wake[0] >= 0 || pipe(wake) != 0)
        return;
    for (int i = 0; i < 2; i++) {
        fcntl(wake[i], F_SETFL, O_NONBLOCK);
        fcntl(wake[i], F_SETFD, FD_CLOEXEC);
    }
}

void cli_interrupt_catch(void) {
    make_pipe();
    /* With SA_RESTART, so that a write which Ctrl-C interrupts goes on: stdio would drop the text
     * and report an error. Reads wait in cli_interrupt_wait; poll is never restarted. */
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool cli_interrupt_seen(void *unused) {
    (void)unused;
    return seen != 0;
}

void cli_interrupt_clear(void) {
    char bytes[16];
    while (wake[0] >= 0 && read(wake[0], bytes, sizeof bytes) > 0)
        continue;
    seen = 0;
}

bool cli_interrupt_wait(int fd) {
    struct pollfd both[] = {{.fd = fd, .events = POLLIN}, {.fd = wake[0], .events = POLLIN}};
    while (!seen) {
        both[0].revents = 0;
        if (poll(both, 2, -1) < 0 && errno != EINTR)
            return true; /* the read will report the error */
        if (both[0].revents)
            return !seen;
    }
    return false;
}
