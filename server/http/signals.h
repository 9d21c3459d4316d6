/* signals.h: SIGTERM, SIGINT and SIGHUP as values that one thread reads. */
#ifndef SERVER_HTTP_SIGNALS_H
#define SERVER_HTTP_SIGNALS_H

#include <stdbool.h>

/* Takes the three signals over and ignores SIGPIPE, until the process ends. Handlers, not
 * sigwait(): the model's threads already run and have no signal blocked. False: errno says why. */
bool srv_signals_open(void);
/* Waits up to `milliseconds` (-1: for ever) for the next signal and returns its number; 0: none. */
int srv_signals_wait(int milliseconds);

#endif
