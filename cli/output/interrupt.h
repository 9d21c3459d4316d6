/* interrupt.h: Ctrl-C as a flag that long work looks at. */
#ifndef CLI_OUTPUT_INTERRUPT_H
#define CLI_OUTPUT_INTERRUPT_H

#include <stdbool.h>

enum { CLI_INTERRUPTED = 130 }; /* exit status, as shells have it */

void cli_interrupt_catch(
    void); /* from now on; a second Ctrl-C before the first is cleared ends the program */
bool cli_interrupt_seen(void *unused);
void cli_interrupt_clear(void);
/* Waits until `fd` has something to read. False: Ctrl-C came, also if it came just before. */
bool cli_interrupt_wait(int fd);

#endif
