/* cmd_eval_niah.c: quire eval niah. Does the model find a fact in a long text? */
#include "args.h"
#include "command.h"
#include "interrupt.h"
#include "model_args.h"
#include "niah_text.h"
#include "progress.h"
#include "report.h"
#include "text_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID_MAX = 64, ANSWER_TOKENS = 10, ANSWER_BYTES = 512 };

typedef struct niah_options {
    cli_model_args model;
    int32_t n_lengths, n_depths;
    const char *plot;
    bool json;
} niah_options;

typedef struct niah_entry {
    const char *kv;
    bool *found;             /* (n_lengths, n_depths) */
    int32_t n_found, n_lost; /* lost: the raw cache finds it */
} niah_entry;

typedef struct niah_run {
    const niah_options *chosen;
    quire_model *model;
    int32_t context;
    niah_entry *entries; /* the first is the raw cache */
    size_t n_entries;
    cli_progress progress;
    int32_t n_done;
} niah_run;

static int32_t length_at(const niah_run *run, int32_t i) {
    return (int32_t)((int64_t)run->context * (i + 1) / run->chosen->n_lengths);
}

static double depth_at(const niah_run *run, int32_t i) {
    return run->chosen->n_depths > 1 ? (double)i / (run->chosen->n_depths - 1) : 0.5;
}

/* ------------------------------------------------------------------ one question */

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

static quire_status ask(quire_session *session, quire_sampler *sampler, const cli_niah *niah, bool *found) {
    quire_seq *seq;
    quire_status status = quire_seq_create(quire_session_pool(session), &seq);
    if (status != QUIRE_OK)
        return status;
    answer given = {.n = 0};
    quire_generate_options options;
    quire_generate_options_default(&options);
    options.max_tokens = ANSWER_TOKENS;
    options.on_token = on_token;
    options.user = &given;
    quire_generate_result unused;
    status = quire_generate(session, seq, sampler, niah->tokens, niah->n_tokens, &options, &unused);
    *found = strstr(given.text, niah->answer) != NULL;
    quire_seq_free(seq);
    return status;
}

static int ask_all(niah_run *run, quire_session *session, quire_sampler *sampler, niah_entry *entry) {
    const niah_options *chosen = run->chosen;
    for (int32_t i = 0; i < chosen->n_lengths * chosen->n_depths; i++) {
        const int32_t length = i / chosen->n_depths, depth = i % chosen->n_depths;
        cli_niah niah;
        if (!cli_niah_make(run->model, length_at(run, length) - ANSWER_TOKENS, depth_at(run, depth), (uint32_t)i + 1,
                           &niah))
            return CLI_FAILURE;
        quire_status status = ask(session, sampler, &niah, &entry->found[i]);
        free(niah.tokens);
        if (status == QUIRE_E_ABORTED)
            return CLI_INTERRUPTED;
        if (status != QUIRE_OK)
            return cli_quire_error("cannot ask", status, NULL);
        entry->n_found += entry->found[i];
        entry->n_lost += run->entries[0].found[i] && !entry->found[i];
        cli_progress_update(&run->progress, ++run->n_done,
                            (int64_t)run->n_entries * chosen->n_lengths * chosen->n_depths);
    }
    return CLI_OK;
}

static int run_entry(niah_run *run, niah_entry *entry) {
    const niah_options *chosen = run->chosen;
    entry->found = calloc((size_t)(chosen->n_lengths * chosen->n_depths), sizeof *entry->found);
    if (!entry->found)
        return cli_quire_error("cannot ask", QUIRE_E_NOMEM, "out of memory");
    const cli_session_wish wish = {
        .kv = entry->kv, .context = run->context, .max_logits = 1, .stop = cli_interrupt_seen};
    quire_session *session = NULL;
    quire_sampler *sampler = NULL;
    quire_sampler_options greedy;
    quire_sampler_options_default(&greedy);
    greedy.temp = 0;
    int status = cli_session_open(&chosen->model, run->model, &wish, &session);
    if (status == CLI_OK && quire_sampler_create(&sampler, run->model, &greedy) != QUIRE_OK)
        status = CLI_FAILURE;
    if (status == CLI_OK)
        status = ask_all(run, session, sampler, entry);
    quire_sampler_free(sampler);
    quire_session_free(session);
    return status;
}

/* ------------------------------------------------------------------ report */

static json_t *entry_json(const niah_run *run, const niah_entry *entry) {
    const niah_options *chosen = run->chosen;
    json_t *grid = json_array();
    for (int32_t i = 0; i < chosen->n_lengths * chosen->n_depths; i++)
        cli_json_append(&grid,
                        json_pack("{s:i, s:o, s:b}", "length", (int)length_at(run, i / chosen->n_depths), "depth",
                                  cli_json_number(depth_at(run, i % chosen->n_depths)), "found", (int)entry->found[i]));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:o}", "kv", entry->kv, "ctx", (int)run->context, "found",
                     (int)entry->n_found, "tried", (int)(chosen->n_lengths * chosen->n_depths), "found_raw",
                     (int)run->entries[0].n_found, "lost", (int)entry->n_lost, "grid", grid);
}

static int print_json(const niah_run *run) {
    json_t *list = json_array();
    for (size_t i = 1; i < run->n_entries; i++)
        cli_json_append(&list, entry_json(run, &run->entries[i]));
    return cli_print_entries(list);
}

static void print_text(const niah_run *run) {
    const niah_options *chosen = run->chosen;
    for (size_t e = 0; e < run->n_entries; e++) {
        const niah_entry *entry = &run->entries[e];
        printf("%s: %d of %d found", entry->kv, (int)entry->n_found, (int)(chosen->n_lengths * chosen->n_depths));
        if (e > 0)
            printf(", %d lost that the raw cache finds", (int)entry->n_lost);
        printf("\n  depth ");
        for (int32_t i = 0; i < chosen->n_lengths; i++)
            printf(" %7d", (int)length_at(run, i));
        putchar('\n');
        for (int32_t d = 0; d < chosen->n_depths; d++) {
            printf("  %4.0f %%", 100 * depth_at(run, d));
            for (int32_t i = 0; i < chosen->n_lengths; i++)
                printf(" %7s", entry->found[i * chosen->n_depths + d] ? "######" : ".");
            putchar('\n');
        }
        putchar('\n');
    }
}

/* A heat map for each cache, side by side. */
static int plot(const niah_run *run) {
    const niah_options *chosen = run->chosen;
    FILE *gnuplot = popen("gnuplot", "w");
    if (!gnuplot) {
        cli_error("gnuplot cannot be run for --plot");
        return CLI_FAILURE;
    }
    fprintf(gnuplot, "set terminal pngcairo size %zu,420\nset output '%s'\nset multiplot layout 1,%zu\n",
            260 * run->n_entries + 80, chosen->plot, run->n_entries);
    fputs("set palette defined (0 '#c0392b', 1 '#27ae60')\nset cbrange [0:1]\nunset colorbox\nunset key\n"
          "set xlabel 'tokens'\nset ylabel 'depth, %'\nset tics nomirror out\nset xtics rotate by -45\n",
          gnuplot);
    for (size_t e = 0; e < run->n_entries; e++) {
        fprintf(gnuplot,
                "set title '%s' noenhanced\nset yrange [%g:-%g]\nplot '-' matrix rowheaders columnheaders with image\n",
                run->entries[e].kv, chosen->n_depths - 0.5, 0.5);
        fprintf(gnuplot, "%d", (int)chosen->n_lengths);
        for (int32_t i = 0; i < chosen->n_lengths; i++)
            fprintf(gnuplot, " %d", (int)length_at(run, i));
        for (int32_t d = 0; d < chosen->n_depths; d++) {
            fprintf(gnuplot, "\n%.0f", 100 * depth_at(run, d));
            for (int32_t i = 0; i < chosen->n_lengths; i++)
                fprintf(gnuplot, " %d", (int)run->entries[e].found[i * chosen->n_depths + d]);
        }
        fputs("\ne\n", gnuplot);
    }
    if (pclose(gnuplot) == 0)
        return CLI_OK;
    cli_error("gnuplot could not write '%s'", chosen->plot);
    return CLI_FAILURE;
}

/* ------------------------------------------------------------------ command */

static int evaluate(niah_run *run, char **names) {
    const niah_options *chosen = run->chosen;
    int status = cli_model_open(&chosen->model, &run->model);
    if (status != CLI_OK)
        return status;
    quire_model_info info;
    quire_model_get_info(run->model, &info);
    run->context = chosen->model.context ? chosen->model.context : info.context;
    cli_interrupt_catch();
    cli_progress_start(&run->progress, "niah");
    for (size_t i = 0; status == CLI_OK && i < run->n_entries; i++) {
        run->entries[i].kv = i == 0 ? "none" : names[i - 1];
        status = run_entry(run, &run->entries[i]);
    }
    cli_progress_end(&run->progress);
    if (status != CLI_OK)
        return status;
    if (chosen->json)
        status = print_json(run);
    else
        print_text(run);
    return status == CLI_OK && chosen->plot ? plot(run) : status;
}

int cli_eval_niah_run(int argc, char **argv) {
    niah_options chosen = {.n_lengths = 4, .n_depths = 5};
    cli_model_args_default(&chosen.model);
    enum { OWN = 4 };
    cli_option options[OWN + CLI_MODEL_OPTIONS] = {
        cli_int("lengths", &chosen.n_lengths, 1, GRID_MAX, "lengths of the text, up to --ctx"),
        cli_int("depths", &chosen.n_depths, 1, GRID_MAX, "places of the fact in it"),
        cli_string("plot", &chosen.plot, "FILE", "also draw the map as PNG, with gnuplot"),
        cli_flag("json", &chosen.json, "print JSON: an object, or an array for more than one --kv"),
    };
    cli_model_options(&chosen.model, options + OWN);
    static const char *const examples[] = {
        "quire eval niah -m smollm2 --ctx 4096 --kv k8v8,k8v4 --plot niah.png",
        NULL,
    };
    const cli_usage usage = {
        .command = "eval niah",
        .about = "A needle in a haystack: a number is told somewhere in a long text and asked for at its end, for\n"
                 "several lengths and places. The raw cache runs first; a needle is lost if it alone finds it.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    size_t n;
    char **names = cli_list_split(chosen.model.kv, &n);
    niah_run run = {.chosen = &chosen, .n_entries = n + 1};
    run.entries = calloc(run.n_entries, sizeof *run.entries);
    status = names && run.entries ? evaluate(&run, names) : CLI_FAILURE;
    for (size_t i = 0; run.entries && i < run.n_entries; i++)
        free(run.entries[i].found);
    free(run.entries);
    free(names);
    quire_model_free(run.model);
    return status;
}
