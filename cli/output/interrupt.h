/* interrupt.h: Ctrl-C as a flag that long work checks. */
#ifndef CLI_OUTPUT_INTERRUPT_H
#define CLI_OUTPUT_INTERRUPT_H

#include <stdbool.h>

enum { CLI_INTERRUPTED = 130 }; /* exit status; 128 + SIGINT, as in shells */

/* Starts catching Ctrl-C. A second Ctrl-C before cli_interrupt_clear ends the program. */
void cli_interrupt_catch(void);
bool cli_interrupt_seen(void *unused);
void cli_interrupt_clear(void);
/* Waits until `fd` is readable. False: Ctrl-C was pressed, during the call or before it. */
bool cli_interrupt_wait(int fd);

#endif
