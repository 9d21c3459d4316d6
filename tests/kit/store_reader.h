/* A process that does something to a store, tells when it is in the middle of it, and waits
 * there. */
#ifndef QUIRE_TESTS_STORE_READER_H
#define QUIRE_TESTS_STORE_READER_H

#include <lmdb.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kit.h"

typedef struct other_process {
    pid_t process;
    int told[2], go_on[2];
} other_process;

/* For the process itself. */
static inline void tell_and_wait(const other_process *o) {
    char byte = 0;
    if (write(o->told[1], &byte, 1) != 1 || read(o->go_on[0], &byte, 1) < 0)
        _exit(9);
}

/* `work` ends with _exit. */
static inline void start_other(other_process *o, void (*work)(const char *dir, other_process *o),
                               const char *dir) {
    char byte;
    assert_int_equal(pipe(o->told), 0);
    assert_int_equal(pipe(o->go_on), 0);
    o->process = fork();
    if (o->process == 0) {
        close(o->go_on[1]); /* so that it ends if the test does */
        work(dir, o);
    }
    assert_int_equal(read(o->told[0], &byte, 1), 1);
}

static inline int wait_for_other(other_process *o) {
    int status;
    assert_int_equal(waitpid(o->process, &status, 0), o->process);
    for (int i = 0; i < 2; i++) {
        close(o->told[i]);
        close(o->go_on[i]);
    }
    return status;
}

static inline void end_other(other_process *o) {
    char byte = 0;
    assert_int_equal(write(o->go_on[1], &byte, 1), 1);
    const int status = wait_for_other(o);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Reads one state of the store, as long as it is let. */
static inline void read_one_state(const char *dir, other_process *o) {
    MDB_env *env;
    MDB_txn *txn;
    if (mdb_env_create(&env) != 0 || mdb_env_open(env, dir, MDB_RDONLY, 0600) != 0 ||
        mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) != 0)
        _exit(2);
    tell_and_wait(o);
    _exit(0);
}

#endif
