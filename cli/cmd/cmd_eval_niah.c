/* cmd_eval_niah.c: quire eval niah. Tests whether a model finds a fact in a long text.
 *
 * All texts share the hay before the fact, and texts with a fact at the same token share everything
 * before the question of the shorter one. So the hay is computed once, a fork of it gets the fact
 * and grows, and a fork of that gets the question:
 *
 *   hay  ------+-------+----->
 *               \       fact ---+-->
 *                fact ---+-->    question
 *                         question
 *
 * A fork computes the same bits (docs/ENGINE.md), so the answers are those of texts that were
 * computed from their first token.
 *
 * With --together all facts are in one text, which is computed once. That is several times faster
 * and harder for the model, because the other facts look like answers. */
#include "command.h"
#include "eval/niah_grid.h"
#include "options/args.h"
#include "options/model_args.h"
#include "output/interrupt.h"
#include "output/progress.h"
#include "output/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID_MAX = 64, ANSWER_TOKENS = 10, ANSWER_BYTES = 512, SEQUENCES = 3 };

typedef struct niah_options {
    cli_model_args model;
    int32_t n_lengths, n_places;
    const char *hay, *plot;
    bool together, json;
} niah_options;

typedef struct niah_run {
    const niah_options *chosen;
    cli_model_args raw; /* of the first map */
    quire_model *model;
    int32_t n_vocab;
    cli_hay hay;
    cli_niah_grid grid;
    cli_niah_map *maps; /* the first is the raw cache's */
    size_t n_maps;
    cli_progress progress;
    int64_t n_done, n_tokens; /* of all caches */
    /* of the cache at work */
    quire_session *session;
    quire_sampler *sampler;
} niah_run;

/* ------------------------------------------------------------------ one cache */

typedef struct answer {
    char text[ANSWER_BYTES];
    size_t n;
} answer;

static bool on_token(void *user, int32_t token, const char *bytes, size_t n_bytes) {
    (void)token;
    answer *a = user;
    if (a->n + n_bytes < sizeof a->text) {
        memcpy(a->text + a->n, bytes, n_bytes);
        a->n += n_bytes;
    }
    return true;
}

/* The probability of the right answer after the question. Leaves `seq` unchanged. */
static quire_status measure(niah_run *run, quire_seq *seq, const cli_needle *needle, double *p) {
    int32_t tokens[CLI_NEEDLE_TOKENS + CLI_ANSWER_TOKENS];
    memcpy(tokens, needle->question, (size_t)needle->n_question * sizeof *tokens);
    memcpy(tokens + needle->n_question, needle->said, (size_t)needle->n_said * sizeof *tokens);
    const quire_step_item item = {.seq = seq,
                                  .tokens = tokens,
                                  .n_tokens = needle->n_question + needle->n_said - 1,
                                  .n_logits = needle->n_said};
    quire_status status = quire_session_eval(run->session, &item, 1, false);
    if (status != QUIRE_OK)
        return status;
    double nats = 0;
    for (int32_t i = 0; i < needle->n_said; i++)
        nats +=
            quire_logits_nll(quire_session_logits(run->session, i), run->n_vocab, needle->said[i]);
    *p = exp(-nats);
    quire_session_abort(run->session);
    return QUIRE_OK;
}

static quire_status ask(niah_run *run, quire_seq *text, const cli_needle *needle, bool *found,
                        double *p) {
    quire_seq *seq;
    quire_status status = quire_seq_fork(text, &seq);
    if (status != QUIRE_OK)
        return status;
    answer given = {.n = 0};
    quire_generate_options options;
    quire_generate_options_default(&options);
    options.max_tokens = ANSWER_TOKENS;
    options.on_token = on_token;
    options.user = &given;
    quire_generate_result unused;
    status = measure(run, seq, needle, p);
    if (status == QUIRE_OK)
        status = quire_generate(run->session, seq, run->sampler, needle->question,
                                needle->n_question, &options, &unused);
    *found = cli_needle_is_in(needle, given.text);
    quire_seq_free(seq);
    return status;
}

static void on_prefill(void *user, int32_t done) {
    niah_run *run = user;
    cli_progress_update(&run->progress, run->n_done + done, run->n_tokens);
}

static quire_status grow(niah_run *run, quire_seq *seq, int32_t from, int32_t to) {
    if (from == to)
        return QUIRE_OK;
    quire_status status = quire_session_prefill(run->session, seq, run->hay.tokens + from,
                                                to - from, on_prefill, run);
    run->n_done += to - from;
    return status;
}

static quire_status ask_cell(niah_run *run, quire_seq *text, const cli_niah_cell *cell,
                             const cli_needle *needle, cli_niah_map *map) {
    const int32_t i = cli_niah_index(&run->grid, cell);
    quire_status status = ask(run, text, needle, &map->found[i], &map->p[i]);
    map->n_found += map->found[i];
    map->n_lost += run->maps[0].found[i] && !map->found[i];
    return status;
}

static quire_status tell(niah_run *run, quire_seq *seq, const cli_needle *needle) {
    return quire_session_prefill(run->session, seq, needle->fact, needle->n_fact, NULL, NULL);
}

/* Asks for the cells with the fact at one place, shortest text first, and advances *at past them.
 */
static quire_status ask_place(niah_run *run, quire_seq *hay, int32_t *at, cli_niah_map *map) {
    const cli_niah_grid *grid = &run->grid;
    const int32_t fact_at = grid->cells[*at].fact_at;
    cli_needle needle;
    if (!cli_needle_make(run->model, grid->cells[*at].fact, &needle))
        return QUIRE_E_INVALID;
    quire_seq *text;
    quire_status status = quire_seq_fork(hay, &text);
    if (status != QUIRE_OK)
        return status;
    status = tell(run, text, &needle);
    for (int32_t done = fact_at; status == QUIRE_OK && *at < grid->n_cells; ++*at) {
        const cli_niah_cell *cell = &grid->cells[*at];
        if (cell->fact_at != fact_at)
            break;
        status = grow(run, text, done, cell->end);
        done = cell->end;
        if (status == QUIRE_OK)
            status = ask_cell(run, text, cell, &needle, map);
    }
    quire_seq_free(text);
    return status;
}

static quire_status ask_alone(niah_run *run, quire_seq *hay, cli_niah_map *map) {
    quire_status status = QUIRE_OK;
    for (int32_t at = 0; status == QUIRE_OK && at < run->grid.n_cells;) {
        status = grow(run, hay, quire_seq_length(hay), run->grid.cells[at].fact_at);
        if (status == QUIRE_OK)
            status = ask_place(run, hay, &at, map);
    }
    return status;
}

/* One text: hay and facts in turn; at the end of each length, the questions of its cells. */
static quire_status ask_together(niah_run *run, quire_seq *text, cli_niah_map *map) {
    const cli_niah_grid *grid = &run->grid;
    quire_status status = QUIRE_OK;
    cli_needle needle;
    int32_t done = 0, told = 0; /* tokens of hay, facts */
    for (int32_t length = 0; length < grid->n_lengths; length++) {
        int32_t end = 0;
        for (int32_t i = 0; i < grid->n_cells; i++)
            end = grid->cells[i].length == length ? grid->cells[i].end : end;
        for (int32_t i = 0;
             status == QUIRE_OK && i < grid->n_cells && grid->cells[i].fact_at <= end; i++) {
            const cli_niah_cell *cell = &grid->cells[i];
            if (cell->fact != told)
                continue;
            status = grow(run, text, done, cell->fact_at);
            done = cell->fact_at;
            told++;
            if (status == QUIRE_OK)
                status = cli_needle_make(run->model, cell->fact, &needle) ? tell(run, text, &needle)
                                                                          : QUIRE_E_INVALID;
        }
        if (status == QUIRE_OK)
            status = grow(run, text, done, end);
        done = end;
        for (int32_t i = 0; status == QUIRE_OK && i < grid->n_cells; i++) {
            const cli_niah_cell *cell = &grid->cells[i];
            if (cell->length == length)
                status = cli_needle_make(run->model, cell->fact, &needle)
                             ? ask_cell(run, text, cell, &needle, map)
                             : QUIRE_E_INVALID;
        }
    }
    return status;
}

static int ask_all(niah_run *run, cli_niah_map *map) {
    quire_seq *hay;
    quire_status status = quire_seq_create(quire_session_pool(run->session), &hay);
    if (status != QUIRE_OK)
        return cli_quire_error("cannot run the model on a question", status, NULL);
    status = run->chosen->together ? ask_together(run, hay, map) : ask_alone(run, hay, map);
    quire_seq_free(hay);
    if (status == QUIRE_E_ABORTED)
        return CLI_INTERRUPTED;
    return status == QUIRE_OK ? CLI_OK
                              : cli_quire_error("cannot run the model on a question", status, NULL);
}

static int run_map(niah_run *run, const cli_model_args *args, cli_niah_map *map) {
    const cli_session_request request = {.kv = map->kv,
                                         .context = run->grid.context,
                                         .max_seqs = SEQUENCES,
                                         .max_logits = CLI_ANSWER_TOKENS,
                                         .stop = cli_interrupt_seen};
    quire_sampler_options greedy;
    quire_sampler_options_default(&greedy);
    greedy.temp = 0;
    int status = cli_session_open(args, run->model, &request, &run->session);
    if (status == CLI_OK) {
        quire_status made = quire_sampler_create(&run->sampler, run->model, &greedy);
        status = made == QUIRE_OK
                     ? ask_all(run, map)
                     : cli_quire_error("cannot run the model on a question", made, NULL);
    }
    quire_sampler_free(run->sampler);
    quire_session_free(run->session);
    run->sampler = NULL;
    run->session = NULL;
    return status;
}

/* ------------------------------------------------------------------ report */

static json_t *map_json(const niah_run *run, const cli_niah_map *map) {
    const cli_niah_grid *grid = &run->grid;
    json_t *cells = json_array();
    for (int32_t i = 0; i < grid->n_lengths * grid->n_places; i++)
        cli_json_append(&cells,
                        json_pack("{s:i, s:o, s:b, s:o}", "length",
                                  (int)cli_niah_length(grid, i / grid->n_places), "depth",
                                  cli_json_number(cli_niah_depth(grid, i % grid->n_places)),
                                  "found", (int)map->found[i], "p", cli_json_number(map->p[i])));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o}", "kv", map->kv, "ctx",
                     (int)grid->context, "found", (int)map->n_found, "tried", (int)grid->n_cells,
                     "found_raw", (int)run->maps[0].n_found, "lost", (int)map->n_lost, "p_mean",
                     cli_json_number(cli_niah_mean_p(grid, map)), "p_mean_raw",
                     cli_json_number(cli_niah_mean_p(grid, &run->maps[0])), "grid", cells);
}

static int print_json(const niah_run *run) {
    json_t *list = json_array();
    for (size_t i = 1; i < run->n_maps; i++)
        cli_json_append(&list, map_json(run, &run->maps[i]));
    return cli_print_entries(list);
}

/* ------------------------------------------------------------------ command */

static int prepare(niah_run *run) {
    const niah_options *chosen = run->chosen;
    int status = cli_model_open(&chosen->model, &run->model);
    if (status != CLI_OK)
        return status;
    quire_model_info info;
    quire_model_get_info(run->model, &info);
    run->n_vocab = info.n_vocab;
    cli_niah_grid *grid = &run->grid;
    grid->context = chosen->model.context ? chosen->model.context : info.context;
    grid->n_lengths = chosen->n_lengths;
    grid->n_places = chosen->n_places;
    cli_needle any;
    if (!cli_needle_make(run->model, 0, &any))
        return CLI_FAILURE;
    const int32_t n_together = chosen->together ? chosen->n_lengths * chosen->n_places : 1;
    grid->reserved = n_together * (any.n_fact + 2) + any.n_question + ANSWER_TOKENS +
                     8; /* facts differ a little */
    if (!cli_hay_make(run->model, chosen->hay, grid->context, &run->hay) ||
        !cli_niah_grid_make(grid, &run->hay))
        return CLI_FAILURE;
    if (chosen->together && grid->n_facts > CLI_NEEDLES) {
        cli_error("--together has only %d different facts, but %d lengths with %d depths need %d; "
                  "give fewer",
                  CLI_NEEDLES, (int)chosen->n_lengths, (int)chosen->n_places, (int)grid->n_facts);
        return CLI_USAGE;
    }
    run->n_tokens = (int64_t)run->n_maps * cli_niah_tokens(grid, chosen->together);
    for (size_t i = 0; i < run->n_maps; i++) {
        run->maps[i].found = calloc((size_t)grid->n_cells, sizeof *run->maps[i].found);
        run->maps[i].p = calloc((size_t)grid->n_cells, sizeof *run->maps[i].p);
        if (!run->maps[i].found || !run->maps[i].p)
            return cli_quire_error("cannot run the model on a question", QUIRE_E_NOMEM,
                                   "out of memory");
    }
    return CLI_OK;
}

/* The raw cache comes first. If the list names it too, its result is copied, unless options change
 * the cache. */
static int evaluate(niah_run *run) {
    const cli_model_args *given = &run->chosen->model;
    int status = prepare(run);
    cli_interrupt_catch();
    for (size_t i = 0; status == CLI_OK && i < run->n_maps; i++) {
        cli_niah_map *map = &run->maps[i];
        if (i > 0 && strcmp(map->kv, run->maps[0].kv) == 0 &&
            cli_model_args_same_cache(given, &run->raw)) {
            memcpy(map->found, run->maps[0].found, (size_t)run->grid.n_cells * sizeof *map->found);
            memcpy(map->p, run->maps[0].p, (size_t)run->grid.n_cells * sizeof *map->p);
            map->n_found = run->maps[0].n_found;
            run->n_done += run->n_tokens / (int64_t)run->n_maps;
            continue;
        }
        cli_progress_start(&run->progress, map->kv);
        status = run_map(run, i == 0 ? &run->raw : given, map);
        cli_progress_end(&run->progress);
        if (status == CLI_OK && !run->chosen->json)
            cli_niah_print(&run->grid, map, &run->maps[0], stdout);
        fflush(stdout);
    }
    if (status == CLI_OK && run->chosen->json)
        status = print_json(run);
    if (status == CLI_OK && run->chosen->plot)
        status = cli_niah_plot(&run->grid, run->maps, run->n_maps, run->chosen->plot);
    return status;
}

int cli_eval_niah_run(int argc, char **argv) {
    niah_options chosen = {.n_lengths = 4, .n_places = 5};
    cli_model_args_default(&chosen.model);
    enum { OWN = 6 };
    cli_option options[OWN + CLI_MODEL_OPTIONS] = {
        cli_int("lengths", &chosen.n_lengths, 1, GRID_MAX, "number of text lengths, up to --ctx"),
        cli_int("depths", &chosen.n_places, 1, GRID_MAX,
                "number of places of the fact in the text"),
        cli_flag("together", &chosen.together,
                 "put all facts into one text, instead of one text for each"),
        cli_string("hay", &chosen.hay, "FILE",
                   "text to hide the fact in, a passage per line (default: built-in sentences)"),
        cli_string("plot", &chosen.plot, "FILE", "also plot the results as PNG, with gnuplot"),
        cli_flag("json", &chosen.json, CLI_JSON_LIST_HELP),
    };
    cli_model_options(&chosen.model, options + OWN);
    static const char *const examples[] = {
        "quire eval niah -m smollm2 --ctx 8192 --kv k8v8,k8v4 --plot niah.png",
        "quire eval niah -m gemma3 --ctx 32768 --together --kv k8v8,k8v4,k4v4",
        NULL,
    };
    const cli_usage usage = {.command = "eval niah",
                             .about = "Needle in a haystack: hides a number somewhere in a long "
                                      "text and asks for it at the end, for several lengths of the "
                                      "text and places of the number. --kv may be a list.\n"
                                      "The raw cache (none) runs first. A fact that it finds and "
                                      "another cache does not counts as lost. The probability of "
                                      "the right answer shows how sure the model was.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    char **names = NULL;
    niah_run run = {.chosen = &chosen,
                    .raw = cli_model_args_raw(&chosen.model, (quire_type)chosen.model.raw)};
    status =
        chosen.plot ? cli_niah_plot_check(chosen.plot) : CLI_OK; /* before hours of measuring */
    if (status == CLI_OK)
        status = cli_kv_names_after_none(&chosen.model, &names, &run.n_maps);
    if (status == CLI_OK)
        run.maps = calloc(run.n_maps, sizeof *run.maps);
    for (size_t i = 0; run.maps && i < run.n_maps; i++)
        run.maps[i].kv = names[i];
    if (status == CLI_OK)
        status = run.maps ? evaluate(&run) : CLI_FAILURE;
    for (size_t i = 0; run.maps && i < run.n_maps; i++) {
        free(run.maps[i].found);
        free(run.maps[i].p);
    }
    cli_niah_grid_free(&run.grid);
    cli_hay_free(&run.hay);
    free(run.maps);
    free(names);
    quire_model_free(run.model);
    return status;
}
