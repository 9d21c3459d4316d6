/* terminal.h: a keyboard that does not show in the middle of a reply.
 *
 * While a reply is printed, the terminal does not echo what is typed, and what was typed is
 * discarded at the end: it was not seen, so it should not be sent. The settings are put back
 * whatever ends or stops the program, except SIGKILL. */
#ifndef CLI_OUTPUT_TERMINAL_H
#define CLI_OUTPUT_TERMINAL_H

void cli_terminal_catch(
    void); /* once, before the first reply; nothing where stdin is not a terminal */
void cli_terminal_mute(void);
void cli_terminal_unmute(void);
void cli_terminal_restore(void); /* from a signal handler that is about to end the program */

#endif
