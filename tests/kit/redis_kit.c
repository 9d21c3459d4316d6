#include "redis_kit.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "kit.h"
#include "store_kit.h"

/* Above 28400 a cluster's nodes talk to each other (port + 10000). */
enum { FIRST_PORT = 18400, N_PORTS = 100, SERVERS = 16, WORDS = 64, STARTS = 8 };

static pid_t running[SERVERS];

static void pause_millis(int n) {
    const struct timespec t = {n / 1000, n % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

bool redis_is_installed(void) { return system("redis-server --version >/dev/null 2>&1") == 0; }

/* ------------------------------------------------------------------ processes */

static void note(pid_t gone, pid_t process) {
    for (int i = 0; i < SERVERS; i++)
        if (running[i] == gone) {
            running[i] = process;
            return;
        }
}

static void end_process(pid_t process) {
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
    note(process, 0);
}

void redis_end_all(void) {
    for (int i = 0; i < SERVERS; i++)
        if (running[i] > 0)
            end_process(running[i]);
}

void redis_kill(redis_server *s) {
    if (s->process > 0)
        end_process(s->process);
    s->process = 0;
}

void redis_pause(redis_server *s, bool stop) { kill(s->process, stop ? SIGSTOP : SIGCONT); }

/* ------------------------------------------------------------------ talking */

static int connect_to(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A line, or the line behind the length of a bulk string. */
static bool is_complete(const char *reply, size_t n) {
    const char *end = memchr(reply, '\n', n);
    return end && (reply[0] != '$' || reply[1] == '-' ||
                   memchr(end + 1, '\n', n - (size_t)(end + 1 - reply)));
}

static const char *say(int port, const char *command) {
    static char reply[512];
    size_t n = 0;
    const int fd = connect_to(port);
    reply[0] = '\0';
    if (fd < 0)
        return reply;
    if (send(fd, command, strlen(command), MSG_NOSIGNAL) == (ssize_t)strlen(command))
        while (n + 1 < sizeof reply && !is_complete(reply, n)) {
            const ssize_t more = recv(fd, reply + n, sizeof reply - 1 - n, 0);
            if (more <= 0)
                break;
            n += (size_t)more;
        }
    close(fd);
    reply[n] = '\0';
    char *line = reply[0] == '$' && strchr(reply, '\n') ? strchr(reply, '\n') + 1 : reply;
    line[strcspn(line, "\r\n")] = '\0';
    return line;
}

const char *redis_say(const redis_server *s, const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(line, sizeof line - 2, format, args);
    va_end(args);
    assert_true(n > 0 && n < (int)sizeof line - 2);
    strcat(line, "\r\n");
    return say(s->port, line);
}

const char *redis_place(const redis_server *s, const char *query) {
    static char url[4][600];
    static int next;
    next = (next + 1) % 4;
    snprintf(url[next], sizeof url[next], "redis://127.0.0.1:%d%s%s", s->port, query ? "?" : "",
             query ? query : "");
    return url[next];
}

/* ------------------------------------------------------------------ starting */

static bool is_free(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const bool is = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return is;
}

static int find_port(void) {
    static int next = -1;
    if (next < 0)
        next = (int)(getpid() * 7 % N_PORTS);
    for (int i = 0; i < N_PORTS; i++) {
        next = (next + 1) % N_PORTS;
        if (is_free(FIRST_PORT + next) && is_free(FIRST_PORT + next + 10000))
            return FIRST_PORT + next;
    }
    fail_msg("no port from %d to %d is free", FIRST_PORT, FIRST_PORT + N_PORTS - 1);
    return 0;
}

static void run_server(const redis_server *s) {
    char port[16], tls_port[16], log[400];
    const char *words[WORDS] = {"redis-server",
                                "--port",
                                port,
                                "--bind",
                                "127.0.0.1",
                                "--dir",
                                s->dir,
                                "--save",
                                "",
                                "--appendonly",
                                "no",
                                "--logfile",
                                log,
                                "--daemonize",
                                "no"};
    int n = 15;
    snprintf(port, sizeof port, "%d", s->port);
    snprintf(log, sizeof log, "%s/log", s->dir);
    snprintf(tls_port, sizeof tls_port, "%d", s->tls_port);
    if (s->tls_port) {
        words[n++] = "--tls-port";
        words[n++] = tls_port;
    }
    for (int i = 0; s->options[i]; i++)
        words[n++] = s->options[i];
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves no server behind */
#endif
    execvp(words[0], (char **)(uintptr_t)words);
    _exit(127);
}

/* Its log says so: an answer at its port might come from another server. */
static bool is_ready(const redis_server *s) {
    char path[400], line[400];
    bool is = false;
    snprintf(path, sizeof path, "%s/log", s->dir);
    FILE *log = fopen(path, "r");
    while (log && !is && fgets(line, sizeof line, log))
        is = strstr(line, "Ready to accept connections") != NULL;
    if (log)
        fclose(log);
    return is;
}

/* False: the process has ended, because another one has taken the port. */
static bool comes_up(redis_server *s) {
    char path[400];
    snprintf(path, sizeof path, "%s/log", s->dir);
    unlink(path);
    s->process = fork();
    assert_true(s->process >= 0);
    if (s->process == 0)
        run_server(s);
    note(0, s->process);
    while (!is_ready(s)) {
        int status;
        if (waitpid(s->process, &status, WNOHANG) == s->process) {
            note(s->process, 0);
            s->process = 0;
            return false;
        }
        pause_millis(10);
    }
    return true;
}

void redis_start(redis_server *s, const char *const *options) {
    const int tls_port = s->tls_port;
    for (int i = 0; i < REDIS_OPTIONS; i++)
        s->options[i] = NULL;
    for (int i = 0; options && options[i]; i++) {
        assert_true(i < REDIS_OPTIONS);
        s->options[i] = options[i];
    }
    for (int i = 0; i < STARTS; i++) {
        char name[40];
        s->port = find_port();
        s->tls_port = tls_port ? find_port() : 0;
        snprintf(name, sizeof name, "redis-%d", s->port);
        snprintf(s->dir, sizeof s->dir, "%s", store_dir(name));
        char command[700];
        snprintf(command, sizeof command, "rm -rf '%s' && mkdir -p '%s'", s->dir, s->dir);
        assert_int_equal(system(command), 0);
        if (comes_up(s))
            return;
    }
    fail_msg("redis-server does not start");
}

void redis_restart(redis_server *s) {
    redis_kill(s);
    for (int i = 0; i < 100; i++) { /* its port may still be in use */
        if (comes_up(s))
            return;
        pause_millis(50);
    }
    fail_msg("redis-server does not start again at port %d", s->port);
}

/* ------------------------------------------------------------------ a cluster */

void redis_start_cluster(redis_server *nodes) {
    static const char *const options[] = {"--cluster-enabled", "yes", "--cluster-node-timeout",
                                          "2000", NULL};
    for (int i = 0; i < REDIS_NODES; i++)
        redis_start(&nodes[i], options);
    for (int i = 0; i < REDIS_NODES; i++) {
        const int first = 16384 * i / REDIS_NODES, last = 16384 * (i + 1) / REDIS_NODES - 1;
        assert_string_equal(redis_say(&nodes[i], "CLUSTER SET-CONFIG-EPOCH %d", i + 1), "+OK");
        assert_string_equal(redis_say(&nodes[i], "CLUSTER ADDSLOTSRANGE %d %d", first, last),
                            "+OK");
        assert_string_equal(redis_say(&nodes[i], "CLUSTER MEET 127.0.0.1 %d", nodes[0].port),
                            "+OK");
    }
    for (int i = 0; i < REDIS_NODES; i++) /* until every node knows of all slots */
        while (strncmp(redis_say(&nodes[i], "GET x%d", 0), "-CLUSTERDOWN", 12) == 0)
            pause_millis(20);
}
