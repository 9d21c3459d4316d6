/* Redis servers for tests: on loopback, in directories of their own, ended with the test. */
#ifndef QUIRE_TESTS_REDIS_KIT_H
#define QUIRE_TESTS_REDIS_KIT_H

#include <stdbool.h>
#include <sys/types.h>

enum { REDIS_OPTIONS = 24, REDIS_NODES = 3 };

typedef struct redis_server {
    pid_t process; /* 0: not running */
    int port, tls_port;
    char dir[300];
    const char *options[REDIS_OPTIONS + 1]; /* borrowed; NULL at the end */
} redis_server;

/* Whether the program redis-server is installed. */
bool redis_is_installed(void);
/* Fails the test if it does not come up. options (may be NULL): words, NULL at the end. */
void redis_start(redis_server *s, const char *const *options);
void redis_kill(redis_server *s);    /* kill -9; its data are lost */
void redis_restart(redis_server *s); /* at the same port */
void redis_pause(redis_server *s,
                 bool stop); /* SIGSTOP, SIGCONT: it accepts, but does not answer */
/* Sends a command line, as redis-cli would; the first line of the reply. Valid until the next
 * call. */
const char *redis_say(const redis_server *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* redis://127.0.0.1:PORT?QUERY; valid until the next call but three. */
const char *redis_place(const redis_server *s, const char *query);
/* REDIS_NODES masters that serve all slots; `nodes` has that many. */
void redis_start_cluster(redis_server *nodes);
/* Ends the servers that a test has left running; safe in a group's teardown. */
void redis_end_all(void);

#endif
