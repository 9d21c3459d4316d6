/* cmd_probe.c: quire probe. Measures a model's K and V, and chooses codecs for a budget. */
#include "command.h"
#include "options/args.h"
#include "options/auto_kv.h"
#include "options/comma_list.h"
#include "options/model_args.h"
#include "output/interrupt.h"
#include "output/output.h"
#include "output/report.h"
#include "reports/probe_report.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS_MAX = 1 << 24, CONTEXT_DEFAULT = 8192, OWN_OPTIONS = 5 };

typedef struct probe_options {
    cli_model_args model;
    const char *budgets, *calibration;
    int32_t context;
    bool again, json;
} probe_options;

/* The options of a model that affect the choice. */
static const char *const shared_options[] = {"model", "kv-windowed", "sinks",  "max-kv-size",
                                             "keep",  "raw",         "threads"};
enum { N_SHARED = sizeof shared_options / sizeof shared_options[0] };

static void fill_options(probe_options *chosen, cli_option *options) {
    const cli_option own[OWN_OPTIONS] = {
        cli_string("kv-budget", &chosen->budgets, "LIST",
                   "budgets separated by commas: a KL divergence below 1, or the size of a "
                   "sequence, e.g. 512M"),
        cli_int("ctx", &chosen->context, 1, TOKENS_MAX,
                "length of a sequence in tokens (default: 8192, or less if the model was trained "
                "with less)"),
        cli_string("calibration", &chosen->calibration, "FILE",
                   "write what codecs km4 and km3 need to know of the model to FILE, for the "
                   "plug-in of llama.cpp, and measure nothing else"),
        cli_flag("again", &chosen->again, "measure the model again even if a report is cached"),
        cli_flag("json", &chosen->json, "print JSON"),
    };
    memcpy(options, own, sizeof own);
    cli_option all[CLI_MODEL_OPTIONS];
    cli_model_options(&chosen->model, all);
    for (size_t i = 0, n = OWN_OPTIONS; i < CLI_MODEL_OPTIONS; i++)
        for (size_t j = 0; j < N_SHARED; j++)
            if (strcmp(all[i].name, shared_options[j]) == 0)
                options[n++] = all[i];
}

static int choose(cli_probe *probe, const probe_options *chosen, const char *budget_text,
                  cli_probe_choice *choice) {
    cli_budget budget;
    cli_budget_parse(budget_text, &budget); /* good_options has checked it */
    choice->budget = budget_text;
    choice->pairs = calloc((size_t)probe->info.n_layers, sizeof *choice->pairs);
    if (!choice->pairs)
        return cli_quire_error("cannot choose codecs", QUIRE_E_NOMEM, "out of memory");
    const int status = cli_choose(&chosen->model, probe->model, probe->report, &budget,
                                  probe->context, false, choice->pairs, &choice->choice);
    if (status != CLI_OK)
        return status;
    return cli_chosen_describe(&chosen->model, probe->model, choice->pairs, &choice->chosen);
}

static int run_probe(cli_probe *probe, const probe_options *chosen, quire_model *model,
                     char **budgets) {
    quire_sensitivity *report = NULL;
    probe->model = model;
    quire_model_get_info(model, &probe->info);
    const int32_t usual =
        probe->info.context < CONTEXT_DEFAULT ? probe->info.context : CONTEXT_DEFAULT;
    probe->context = chosen->context ? chosen->context : usual;
    probe->predicted_for = cli_predicted_for(&chosen->model);
    int status = cli_examine(model, chosen->model.n_threads, chosen->again, false, &report);
    probe->report = report;
    probe->choices = calloc(probe->n_choices, sizeof *probe->choices);
    if (status == CLI_OK && !probe->choices)
        status = cli_quire_error("cannot choose codecs", QUIRE_E_NOMEM, "out of memory");
    for (size_t i = 0; status == CLI_OK && i < probe->n_choices; i++)
        status = choose(probe, chosen, budgets[i], &probe->choices[i]);
    if (status == CLI_OK)
        status = chosen->json ? cli_probe_print_json(probe) : cli_probe_print(probe);
    for (size_t i = 0; probe->choices && i < probe->n_choices; i++) {
        free(probe->choices[i].pairs);
        free(probe->choices[i].chosen.layers);
    }
    free(probe->choices);
    free(report);
    return status;
}

/* Checked before minutes of work. */
static bool good_options(const probe_options *chosen, char **budgets, size_t n) {
    cli_budget unused;
    if (chosen->calibration && chosen->json) {
        cli_error("--calibration writes a file and prints nothing: leave out --json");
        return false;
    }
    if (!cli_auto_parse(&chosen->model, "auto", &unused))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!cli_budget_parse(budgets[i], &unused)) {
            cli_error("--kv-budget cannot have '%s'; allowed: %s, separated by commas", budgets[i],
                      CLI_BUDGET_ALLOWED);
            return false;
        }
    return true;
}

int cli_probe_run(int argc, char **argv) {
    probe_options chosen = {.budgets = "0.002"};
    cli_model_args_default(&chosen.model);
    chosen.model.weights = CLI_WEIGHTS_FILE; /* cli_examine expands them itself */
    cli_option options[OWN_OPTIONS + N_SHARED];
    fill_options(&chosen, options);
    static const char *const examples[] = {
        "quire probe -m smollm2",
        "quire probe -m smollm2 --ctx 8192 --kv-budget 0.001,0.01,48M",
        "quire probe -m smollm2 --calibration smollm2.calibration",
        NULL,
    };
    const cli_usage usage = {.command = "probe",
                             .about = "Measures a model's K and V on a built-in text: statistics "
                                      "of each layer, and the loss when it is quantized. Then "
                                      "chooses codecs that fit each budget: a KL divergence, or "
                                      "the bytes of a sequence of --ctx tokens.\n"
                                      "The options '--kv auto', '--kv auto:0.01' and '--kv "
                                      "auto:48M' of other commands choose the same way. A model is "
                                      "measured once; the report is cached.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    cli_probe probe = {.path = chosen.model.model};
    char **budgets = cli_list_split(chosen.budgets, &probe.n_choices);
    if (!budgets)
        return CLI_FAILURE;
    quire_model *model = NULL;
    status = good_options(&chosen, budgets, probe.n_choices) ? cli_output_check(chosen.calibration)
                                                             : CLI_USAGE;
    if (status == CLI_OK)
        status = cli_model_open(&chosen.model, &model);
    cli_interrupt_catch();
    if (status == CLI_OK && chosen.calibration)
        status = cli_calibration_write(&chosen.model, model, chosen.calibration);
    else if (status == CLI_OK)
        status = run_probe(&probe, &chosen, model, budgets);
    quire_model_free(model);
    free(budgets);
    return status;
}
