/* terminal.h: turns off the terminal's echo while a reply is printed.
 *
 * Keys typed during a reply are not shown, and they are discarded at its end: input that the user
 * did not see should not be sent. The settings are restored whatever ends or stops the program,
 * except SIGKILL. */
#ifndef CLI_OUTPUT_TERMINAL_H
#define CLI_OUTPUT_TERMINAL_H

/* Call it once, before the first reply. Does nothing if stdin is not a terminal. */
void cli_terminal_catch(void);
void cli_terminal_mute(void);
void cli_terminal_unmute(void);
void cli_terminal_restore(void); /* for a signal handler that is about to end the program */

#endif
