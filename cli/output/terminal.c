/* terminal.c: turns echo off and on. The signal handlers call only functions that POSIX declares
 * async-signal-safe, such as tcsetattr. */
#include "output/terminal.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

static bool caught;           /* stdin is a terminal, and the handlers are installed */
static struct termios before; /* written only while neither flag is set */
/* echo should be off, unless the program is in the background */
static volatile sig_atomic_t in_reply;
static volatile sig_atomic_t is_changed; /* echo is off */

static void change(void) {
    if (tcgetpgrp(STDIN_FILENO) != getpgrp())
        return; /* in the background, setting the terminal would stop the program */
    struct termios muted = before;
    muted.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    is_changed = 1;
    tcsetattr(STDIN_FILENO, TCSANOW, &muted);
}

void cli_terminal_restore(void) {
    if (!is_changed)
        return;
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
    is_changed = 0;
}

/* Called in a handler: does what the signal does without one. */
static void do_default(int number) {
    struct sigaction standard = {.sa_handler = SIG_DFL}, ours;
    sigset_t it, mask;
    sigemptyset(&standard.sa_mask);
    sigaction(number, &standard, &ours);
    sigemptyset(&it);
    sigaddset(&it, number);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &it, &mask); /* the program ends here, or stops until SIGCONT */
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    sigaction(number, &ours, NULL);
}

static void on_end(int number) {
    cli_terminal_restore();
    do_default(number);
}

static void on_continue(int number) {
    (void)number;
    if (in_reply)
        change();
}

static void handle(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

void cli_terminal_catch(void) {
    caught = isatty(STDIN_FILENO) != 0;
    if (!caught)
        return;
    /* After SIGTSTP the program continues with SIGCONT. */
    static const int ends[] = {SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGTSTP};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        handle(ends[i], on_end);
    handle(SIGCONT, on_continue);
    atexit(cli_terminal_restore);
}

void cli_terminal_mute(void) {
    if (!caught || in_reply || tcgetattr(STDIN_FILENO, &before) != 0)
        return;
    in_reply = 1;
    change();
}

void cli_terminal_unmute(void) {
    if (!in_reply)
        return;
    in_reply = 0;
    if (!is_changed)
        return;
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
    is_changed = 0;
}
