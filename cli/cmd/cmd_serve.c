/* cmd_serve.c: quire serve. Opens the model, its caches and the store, and runs the server. */
#include "command.h"
#include "options/args.h"
#include "options/comma_list.h"
#include "options/model_args.h"
#include "output/report.h"
#include "server.h"
#include "text/text_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = QUIRE_PAGE_TOKENS, CACHES_MAX = 16, PORT_MAX = 65535, CONTEXTS = 4 };

typedef struct serve_options {
    cli_model_args model;
    cli_text_store store;
    srv_options server;
    const char *name, *swap_dir;
    int32_t port;
    size_t max_body;
} serve_options;

typedef struct serve_state {
    serve_options *chosen;
    quire_model *model;
    char **names; /* of codecs */
    srv_cache caches[CACHES_MAX];
    int32_t n_caches;
} serve_state;

/* ------------------------------------------------------------------ opening */

/* One session per codec. A step has a row for every text and `chunk` rows of prompts. */
static int open_caches(serve_state *state) {
    const serve_options *chosen = state->chosen;
    const srv_options *server = &chosen->server;
    quire_model_info info;
    quire_model_get_info(state->model, &info);
    size_t n;
    state->names = cli_list_split(chosen->model.kv, &n);
    if (!state->names)
        return CLI_FAILURE;
    if (!cli_kv_names_check(&chosen->model, state->names, n))
        return CLI_USAGE;
    if (n > CACHES_MAX) {
        cli_error("--kv names %zu codecs, but a server has at most %d", n, CACHES_MAX);
        return CLI_USAGE;
    }
    const int32_t max_seqs = server->max_running + server->max_prefixes + 2;
    for (size_t i = 0; i < n; i++) {
        const cli_session_request request = {
            .kv = state->names[i],
            .context = info.context,
            .max_seqs = max_seqs,
            .full_seqs = max_seqs < CONTEXTS ? max_seqs : CONTEXTS,
            .max_rows = (server->chunk + server->max_running + PAGE - 1) / PAGE * PAGE,
            .max_logits = server->max_running,
            .exact_trim = true};
        srv_cache *cache = &state->caches[i];
        const int status =
            cli_session_open(&chosen->model, state->model, &request, &cache->session);
        if (status != CLI_OK)
            return status;
        cache->kv = state->names[i];
        state->n_caches++;
    }
    return CLI_OK;
}

/* Where sequences go when the cache is full. That directories can be made there is tried now: it
 * would show late otherwise. */
static int choose_swap_dir(srv_options *server, const char *parent) {
    char tried[4000];
    if (!parent)
        parent = getenv("TMPDIR");
    if (!parent || !*parent)
        parent = "/tmp";
    const int n = snprintf(tried, sizeof tried, "%s/quire-swap-XXXXXX", parent);
    if (n < 0 || (size_t)n >= sizeof tried || !mkdtemp(tried)) {
        cli_error("cannot make a directory for swapped sequences in '%s'; --swap-dir DIR names "
                  "another",
                  parent);
        return CLI_FAILURE;
    }
    rmdir(tried);
    server->swap_dir = parent;
    return CLI_OK;
}

static int serve(serve_state *state) {
    serve_options *chosen = state->chosen;
    int status = cli_text_store_open(&chosen->store);
    if (status == CLI_OK)
        status = cli_model_open(&chosen->model, &state->model);
    if (status == CLI_OK)
        status = open_caches(state);
    if (status == CLI_OK)
        status = choose_swap_dir(&chosen->server, chosen->swap_dir);
    if (status != CLI_OK)
        return status;
    srv_options *server = &chosen->server;
    server->model = state->model;
    server->model_name = chosen->name ? chosen->name : chosen->model.model;
    server->caches = state->caches;
    server->n_caches = state->n_caches;
    server->store = chosen->store.store;
    server->port = (uint16_t)chosen->port;
    server->max_body = chosen->max_body;
    char why[512];
    if (srv_run(server, why, sizeof why))
        return CLI_OK;
    cli_error("cannot serve: %s", why);
    return CLI_FAILURE;
}

static void close_all(serve_state *state) {
    for (int32_t i = 0; i < CACHES_MAX; i++)
        quire_session_free(state->caches[i].session);
    quire_model_free(state->model);
    free(state->names);
    cli_text_store_close(&state->chosen->store);
}

/* ------------------------------------------------------------------ the command line */

int cli_serve_run(int argc, char **argv) {
    serve_options chosen = {0};
    cli_model_args_default(&chosen.model);
    srv_options *server = &chosen.server;
    srv_options_default(server);
    chosen.port = server->port;
    chosen.max_body = server->max_body;
    chosen.store.take_line = srv_log_note;
    enum { OWN = 22 };
    cli_option options[OWN + CLI_STORE_OPTIONS + CLI_MODEL_OPTIONS] = {
        cli_string("host", &server->host, "ADDRESS", "address to listen on; 0.0.0.0: all"),
        cli_int("port", &chosen.port, 0, PORT_MAX, "port to listen on; 0: any free one"),
        cli_string("name", &chosen.name, "NAME",
                   "what clients call the model (default: as given with -m)"),
        cli_string("api-keys", &server->api_keys, "FILE",
                   "file with one key per line: requests need one of them"),
        cli_flag("isolate", &server->isolate,
                 "requests with different keys share no pages: nobody can find out by timing "
                 "what others have asked"),
        cli_string("cors", &server->cors_origin, "ORIGIN",
                   "let web pages of this origin call the server; '*': all (default: none)"),
        cli_string("log", &server->log_path, "FILE", "write the log here (default: stderr)"),
        cli_flag("log-prompts", &server->log_prompts, "write prompts into the log"),
        cli_flag("exact", &server->exact,
                 "make answers independent of what else the server computes, bit for bit"),
        cli_int("parallel", &server->max_running, 1, 1024, "texts that are computed at once"),
        cli_int("prefixes", &server->max_prefixes, 0, 1024,
                "finished texts whose pages stay for prompts that begin alike"),
        cli_int("queue", &server->max_queue, 1, 1 << 20,
                "requests that may wait; more are refused with status 429"),
        cli_with_step(cli_int("chunk", &server->chunk, PAGE, 8192,
                              "rows of prompts in one step: fewer slow running answers down less, "
                              "more give a higher total speed"),
                      PAGE),
        cli_string("swap-dir", &chosen.swap_dir, "DIR",
                   "where texts go while the cache is full (default: $TMPDIR or /tmp)"),
        cli_int("connections", &server->max_connections, 1, 1 << 16, "connections at once"),
        cli_size("max-body", &chosen.max_body, 1024, 0x1p32, "longest request"),
        cli_int("max-choices", &server->max_choices, 1, 1024, "largest n of a request"),
        cli_flag("no-grammar", &server->no_grammar,
                 "refuse grammars, JSON formats and required tool calls, so that no client can "
                 "slow the server down with a costly grammar"),
        cli_int("request-timeout", &server->request_seconds, 0, 1 << 20,
                "seconds after which a request ends; 0: never"),
        cli_int("header-timeout", &server->header_seconds, 1, 3600,
                "seconds in which a client must send its headers"),
        cli_int("body-timeout", &server->body_seconds, 1, 3600,
                "seconds in which it must send the body"),
        cli_int("idle-timeout", &server->idle_seconds, 1, 3600,
                "seconds after which an idle connection is closed"),
    };
    options[9].heading = "scheduling";
    options[14].heading = "limits";
    cli_text_store_options(&chosen.store, options + OWN);
    cli_model_options(&chosen.model, options + OWN + CLI_STORE_OPTIONS);
    static const char *const examples[] = {
        "quire serve -m smollm2 --kv k4v4",
        "quire serve -m model.gguf --kv k8v4,k4v4 --port 8000 --store ~/prefixes",
        "quire serve -m model.gguf --kv k4v4 --kv-bytes 2G --host :: --api-keys keys",
        NULL,
    };
    const cli_usage usage = {
        .command = "serve",
        .about =
            "Serves a model over HTTP: OpenAI's chat and completions API, and a web page to chat "
            "and to watch the cache at /.\n"
            "Requests are computed together, one row of each per step. Prompts that begin "
            "alike share pages. A request may choose one of the codecs of --kv with the "
            "field \"kv\"; the first is the default.\n"
            "Without --kv-bytes each cache has room for four texts as long as the context, or "
            "more shorter ones.\n"
            "SIGTERM finishes the running requests, a second one stops at once. SIGHUP opens the "
            "log again and reads the keys again.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    serve_state state = {.chosen = &chosen};
    status = serve(&state);
    close_all(&state);
    return status;
}
