/* interrupt.c: the handler. */
#include "interrupt.h"

#include "terminal.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t seen;

static void handle(int number) {
    if (seen) { /* the work does not come to its end: as without a handler */
        cli_terminal_restore();
        signal(number, SIG_DFL);
        raise(number);
    }
    seen = 1;
}

void cli_interrupt_catch(void) {
    struct sigaction action = {.sa_handler = handle};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL); /* without SA_RESTART: a read of the keyboard returns too */
}

bool cli_interrupt_seen(void *unused) {
    (void)unused;
    return seen != 0;
}

void cli_interrupt_clear(void) { seen = 0; }
