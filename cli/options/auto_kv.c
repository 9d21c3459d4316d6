/* auto_kv.c: parses budgets, and chooses the codecs of a session for a budget. */
#include "options/auto_kv.h"

#include "command.h"
#include "output/interrupt.h"
#include "output/progress.h"
#include "output/report.h"

#include <stdlib.h>
#include <string.h>

/* Too small for people and benchmarks to notice: docs/FIDELITY.md. */
static const double KLD_DEFAULT = 0.002;

/* ------------------------------------------------------------------ parsing */

bool cli_budget_parse(const char *text, cli_budget *budget) {
    *budget = (cli_budget){0};
    const cli_option kld = cli_float("kv", &budget->kld, 1e-9, 1 - 1e-9, ""),
                     bytes = cli_size("kv", &budget->bytes, 1, 0x1p50, "");
    return cli_option_assign(&kld, text) || cli_option_assign(&bytes, text);
}

bool cli_auto_is(const char *kv) {
    return strncmp(kv, "auto", 4) == 0 && (kv[4] == '\0' || kv[4] == ':');
}

bool cli_auto_parse(const cli_model_args *args, const char *kv, cli_budget *budget) {
    *budget = (cli_budget){.kld = KLD_DEFAULT};
    if (kv[4] == ':' && !cli_budget_parse(kv + 5, budget)) {
        cli_error("--kv cannot be '%s'; allowed after auto: %s", kv, CLI_BUDGET_ALLOWED);
        return false;
    }
    if (args->kv_layers) {
        cli_error(
            "--kv-layers cannot be used with --kv auto, which chooses the codecs of all layers");
        return false;
    }
    if (strcmp(args->kv_windowed, "raw:raw") == 0 || strcmp(args->kv_windowed, "same") == 0)
        return true;
    cli_error("--kv-windowed cannot be '%s' with --kv auto; allowed: raw:raw or same",
              args->kv_windowed);
    return false;
}

/* ------------------------------------------------------------------ choosing */

typedef struct examining {
    cli_progress progress;
    bool measures; /* there was no report */
} examining;

static void on_progress(void *user, int32_t done, int32_t total) {
    examining *e = user;
    e->measures = true;
    cli_progress_update(&e->progress, done, total);
}

static bool stop(void *unused) { return cli_interrupt_seen(unused); }

int cli_examine(const quire_model *model, int32_t n_threads, bool again, bool quiet,
                quire_sensitivity **report) {
    examining state = {.measures = false};
    cli_progress_start(&state.progress, "examining");
    quire_sensitivity_options options;
    quire_sensitivity_options_default(&options);
    options.n_threads = n_threads;
    options.again = again;
    options.on_progress = on_progress;
    options.stop = stop;
    options.user = &state;
    const quire_status status = quire_model_sensitivity(model, &options, report);
    cli_progress_end(&state.progress);
    if (status == QUIRE_OK && state.measures && !quiet)
        cli_say_if_lost("how each layer fares");
    if (status == QUIRE_E_ABORTED)
        return CLI_INTERRUPTED;
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot examine the model", status, NULL);
}

/* Layers with a sliding window are small and stay raw, as with presets, unless the budget is in
 * bytes. */
int cli_choose(const cli_model_args *args, const quire_model *model,
               const quire_sensitivity *report, const cli_budget *budget, int32_t context,
               bool exact_trim, quire_pair *pairs, quire_choice *choice) {
    quire_choice_options options;
    quire_choice_options_default(&options);
    options.bytes = budget->bytes;
    if (budget->bytes == 0)
        options.kld = budget->kld;
    options.windowed = budget->bytes > 0 || strcmp(args->kv_windowed, "same") == 0;
    options.context = context;
    options.max_kv = args->max_kv;
    options.keep = cli_model_args_keep(args);
    options.raw = (quire_type)args->raw;
    options.exact_trim = exact_trim;
    if (args->sinks >= 0)
        options.sinks = args->sinks;
    const quire_status status = quire_choose_codecs(model, report, &options, pairs, choice);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot choose codecs", status, NULL);
}

const char *cli_predicted_for(const cli_model_args *args) {
    const bool sinks = args->sinks >= 0 && args->sinks != CLI_SINKS_USUAL;
    return sinks && args->plain_rounding ? " (with 4 raw sinks and rounding by queries)"
           : sinks                       ? " (with 4 raw sinks)"
           : args->plain_rounding        ? " (with rounding by queries)"
                                         : "";
}

static int tell(const cli_model_args *args, const cli_session_request *request,
                const quire_model *model, int32_t context, const quire_pair *pairs,
                const quire_choice *choice) {
    cli_chosen chosen;
    const int status = cli_chosen_describe(args, model, pairs, &chosen);
    if (status != CLI_OK)
        return status;
    fprintf(stderr, "%s: ", request->kv);
    cli_chosen_print(&chosen, stderr);
    fprintf(stderr, "; KLD %.2g predicted%s, %s for %d tokens, raw %s\n", choice->kld,
            cli_predicted_for(args), cli_bytes(choice->bytes).text, (int)context,
            cli_bytes(choice->raw_bytes).text);
    free(chosen.layers);
    return CLI_OK;
}

int cli_auto_pairs(const cli_model_args *args, const quire_model *model,
                   const cli_session_request *request, quire_pair *pairs) {
    cli_budget budget;
    if (!cli_auto_parse(args, request->kv, &budget))
        return CLI_USAGE;
    const int32_t context = args->context ? args->context : request->context;
    quire_sensitivity *report = NULL;
    quire_choice choice;
    int status = cli_examine(model, args->n_threads, false, request->quiet, &report);
    if (status == CLI_OK)
        status =
            cli_choose(args, model, report, &budget, context, request->exact_trim, pairs, &choice);
    free(report);
    if (status == CLI_OK && !request->quiet)
        status = tell(args, request, model, context, pairs, &choice);
    return status;
}
