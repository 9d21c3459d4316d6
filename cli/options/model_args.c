/* model_args.c: opens models and sessions, and reads texts, from command-line options. */
#include "options/model_args.h"

#include "command.h"
#include "options/auto_kv.h"
#include "options/cache_args.h"
#include "options/comma_list.h"
#include "options/model_find.h"
#include "options/workers.h"
#include "output/interrupt.h"
#include "output/progress.h"
#include "output/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS_MAX = 1 << 24, SINKS_MAX = QUIRE_PAGE_TOKENS, KEEP_USUAL = 4 };

static const char *const weight_names[] = {"repacked", "file", "f32", NULL};

void cli_model_args_default(cli_model_args *args) {
    *args = (cli_model_args){.kv = "k8v4",
                             .sinks = -1,
                             .keep = -1,
                             .n_threads = cli_workers_default(),
                             .raw = QUIRE_F16,
                             .kv_windowed = "raw:raw"};
}

cli_model_args cli_model_args_raw(const cli_model_args *args, quire_type raw) {
    cli_model_args base = *args;
    base.raw = (int32_t)raw;
    base.kv_layers = NULL;
    base.kv_windowed = "raw:raw";
    base.max_kv = 0;
    base.kv_bytes = 0;
    return base;
}

bool cli_model_args_same_cache(const cli_model_args *a, const cli_model_args *b) {
    return a->raw == b->raw && a->max_kv == b->max_kv && a->kv_layers == b->kv_layers &&
           strcmp(a->kv_windowed, b->kv_windowed) == 0;
}

void cli_model_options(cli_model_args *args, cli_option *options) {
    const cli_option all[CLI_MODEL_OPTIONS] = {
        cli_with_letter(
            cli_string("model", &args->model, "FILE",
                       "required: a GGUF file, or smollm2 or gemma3, which are downloaded once"),
            'm'),
        cli_string("kv", &args->kv, "NAME",
                   "codecs of the cache: a preset or a pair K:V (see 'quire codecs'), or "
                   "auto[:KLD|:BYTES] (see 'quire probe')"),
        cli_string("kv-layers", &args->kv_layers, "LIST",
                   "other codecs for some layers, e.g. 0-1=k8v8,29=none"),
        cli_string("kv-windowed", &args->kv_windowed, "NAME",
                   "codecs of layers with a sliding window; same: those of --kv"),
        cli_int("sinks", &args->sinks, 0, SINKS_MAX, CLI_SINKS_HELP),
        cli_flag("plain-rounding", &args->plain_rounding,
                 "km4, km3: round each channel of K independently, without query-aware rounding"),
        cli_int("max-kv-size", &args->max_kv, 1, TOKENS_MAX,
                "keep at most N tokens of a sequence: the first of them (--keep) and the newest "
                "(default: all)"),
        cli_int("keep", &args->keep, 0, TOKENS_MAX,
                "first tokens that --max-kv-size does not drop (default: 4)"),
        cli_int("ctx", &args->context, 1, TOKENS_MAX,
                "length of the context in tokens (default: as many as needed, up to the model's; "
                "chat, serve and eval niah: the model's; eval kld and ppl: 2048)"),
        cli_size("kv-bytes", &args->kv_bytes, 1, 0x1p50,
                 "memory of the cache, e.g. 512M (default: as much as the context needs)"),
        cli_choice("raw", &args->raw, cli_raw_names, CLI_RAW_HELP),
        cli_choice(
            "weights", &args->weights, weight_names,
            "how weights are held: repacked (copied into a faster layout), file (as they are) or "
            "f32 (expanded)"),
        cli_with_letter(cli_int("threads", &args->n_threads, 1, CLI_WORKERS_MAX, CLI_WORKERS_HELP),
                        't'),
    };
    memcpy(options, all, sizeof all);
    options[0].heading = "model and cache options";
}

int32_t cli_model_args_keep(const cli_model_args *args) {
    return !args->max_kv ? 0 : args->keep >= 0 ? args->keep : KEEP_USUAL;
}

static bool good_bounds(const cli_model_args *args) {
    const int32_t keep = cli_model_args_keep(args);
    if (args->keep >= 0 && !args->max_kv)
        cli_error("--keep needs --max-kv-size N; without it no token is dropped");
    else if (args->max_kv && args->max_kv <= keep)
        cli_error("--max-kv-size cannot be %d; it must be at least %d, one more than the first %d "
                  "tokens that --keep holds",
                  (int)args->max_kv, (int)keep + 1, (int)keep);
    else
        return true;
    return false;
}

/* Beside the models of tools/fetch-model. "": there is none. */
static void find_cache_dir(char *path, size_t capacity) {
    const char *own = getenv("QUIRE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n = own && *own     ? snprintf(path, capacity, "%s/orders", own)
            : xdg && *xdg   ? snprintf(path, capacity, "%s/quire/orders", xdg)
            : home && *home ? snprintf(path, capacity, "%s/.cache/quire/orders", home)
                            : 0;
    if (n <= 0 || (size_t)n >= capacity)
        path[0] = 0;
}

void cli_say_if_lost(const char *what) {
    char path[4096];
    find_cache_dir(path, sizeof path);
    if (!path[0])
        cli_error("%s cannot be kept, because QUIRE_CACHE, XDG_CACHE_HOME and HOME are not set; it "
                  "is measured again each time",
                  what);
    else if (access(path, W_OK) != 0)
        cli_error("%s cannot be kept in %s (%s) and is measured again each time; QUIRE_CACHE names "
                  "another directory",
                  what, path, strerror(errno));
}

/* Of the model that was opened last: a command that compares caches calibrates it once. */
static struct {
    const quire_model *model;
    quire_calibration *value; /* NULL: not needed so far */
} calibrated;

int cli_model_open(const cli_model_args *args, quire_model **model) {
    if (!args->model) {
        cli_error("no model was given; give -m FILE, -m smollm2 or -m gemma3");
        return CLI_USAGE;
    }
    if (!good_bounds(args))
        return CLI_USAGE;
    char *path;
    int status = cli_model_find(args->model, &path);
    if (status != CLI_OK)
        return status;
    quire_model_options options;
    quire_model_options_default(&options);
    options.repack = args->weights == CLI_WEIGHTS_REPACKED;
    options.f32_weights = args->weights == CLI_WEIGHTS_F32;
    char cache_dir[4096];
    find_cache_dir(cache_dir, sizeof cache_dir);
    if (cache_dir[0])
        options.cache_dir = cache_dir;
    quire_status loaded = quire_model_load(model, path, &options);
    free(path);
    quire_calibration_free(calibrated.value);
    calibrated.value = NULL;
    return loaded == QUIRE_OK ? CLI_OK : cli_quire_error("cannot load the model", loaded, NULL);
}

/* ------------------------------------------------------------------ --kv-layers */

static bool bad_layers(const char *part, const char *why) {
    cli_error("--kv-layers cannot have '%s': %s; allowed: LAYER=NAME or FIRST-LAST=NAME, "
              "separated by commas",
              part, why);
    return false;
}

/* Parses "3=" or "0-5=" and advances *text past it. */
static bool parse_range(char **text, long *first, long *last) {
    char *end;
    *first = *last = strtol(*text, &end, 10);
    if (end == *text)
        return false;
    if (*end == '-') {
        char *second = end + 1;
        *last = strtol(second, &end, 10);
        if (end == second)
            return false;
    }
    *text = end + 1;
    return *end == '=';
}

static bool assign_layers(char *part, int32_t n_layers, quire_pair *pairs) {
    char *name = part;
    long first, last;
    if (!parse_range(&name, &first, &last))
        return bad_layers(part, "it does not start with a layer number or range and '='");
    if (first < 0 || last < first || last >= n_layers) {
        char why[64];
        snprintf(why, sizeof why, "the model's layers are 0 to %d", (int)n_layers - 1);
        return bad_layers(part, why);
    }
    quire_policy policy;
    if (!cli_policy_parse(name, -1, &policy))
        return false;
    for (long i = first; i <= last; i++)
        pairs[i] = policy.pair;
    return true;
}

static bool parse_layers(const char *text, int32_t n_layers, quire_pair *pairs) {
    size_t n;
    char **parts = cli_list_split(text, &n);
    bool good = parts != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = assign_layers(parts[i], n_layers, pairs);
    free(parts);
    return good;
}

/* ------------------------------------------------------------------ session */

/* auto: every layer gets its pair later; the rest of the policy is that of any packed preset. */
static bool fill_policy(const cli_model_args *args, const char *kv, quire_policy *policy) {
    cli_budget unused;
    if (cli_auto_is(kv))
        return cli_auto_parse(args, kv, &unused) && cli_policy_parse("k8v8", args->sinks, policy);
    const bool same = strcmp(args->kv_windowed, "same") == 0;
    quire_policy windowed;
    if (!cli_policy_parse(kv, args->sinks, policy) ||
        !cli_policy_parse(same ? kv : args->kv_windowed, -1, &windowed))
        return false;
    policy->windowed = windowed.pair;
    return true;
}

bool cli_kv_names_check(const cli_model_args *args, char **names, size_t n) {
    quire_policy unused;
    for (size_t i = 0; i < n; i++)
        if (!fill_policy(args, names[i], &unused))
            return false;
    return true;
}

typedef struct calibrating {
    const quire_session_options *session;
    cli_progress progress; /* shown only if something is measured */
} calibrating;

static void on_calibrate(void *user, int32_t done, int32_t total) {
    cli_progress *progress = &((calibrating *)user)->progress;
    if (progress->started == 0)
        cli_progress_start(progress, "channels");
    cli_progress_update(progress, done, total);
    if (done == total)
        cli_progress_end(progress);
}

static bool stop_calibrating(void *user) {
    const quire_session_options *session = ((calibrating *)user)->session;
    return session->stop && session->stop(session->stop_user);
}

static quire_status calibrate(const quire_model *model, const quire_session_options *session,
                              bool quiet) {
    if (calibrated.value && calibrated.model == model)
        return QUIRE_OK;
    calibrating state = {.session = session};
    quire_calibration_options options;
    quire_calibration_options_default(&options);
    options.n_threads = session->n_threads;
    options.on_progress = on_calibrate;
    options.stop = stop_calibrating;
    options.user = &state;
    quire_calibration_free(calibrated.value);
    calibrated.model = model;
    const quire_status status = quire_model_calibrate(model, &options, &calibrated.value);
    if (status == QUIRE_OK && state.progress.started != 0 && !quiet)
        cli_say_if_lost("the model's calibration");
    return status;
}

int cli_calibration_write(const cli_model_args *args, const quire_model *model, const char *path) {
    const quire_session_options session = {.n_threads = args->n_threads,
                                           .stop = cli_interrupt_seen};
    quire_status status = calibrate(model, &session, false);
    if (status == QUIRE_OK)
        status = quire_calibration_write(calibrated.value, model, path);
    if (status == QUIRE_E_ABORTED)
        return CLI_INTERRUPTED;
    return status == QUIRE_OK ? CLI_OK
                              : cli_quire_error("cannot write the calibration", status, NULL);
}

static int create(const quire_model *model, quire_session_options *options, bool quiet,
                  quire_session **session) {
    quire_status status = QUIRE_OK;
    if (quire_session_needs_calibration(model, options)) {
        status = calibrate(model, options, quiet);
        options->calibration = calibrated.value;
    }
    if (status == QUIRE_OK)
        status = quire_session_create(session, model, options);
    if (status == QUIRE_E_ABORTED)
        return CLI_INTERRUPTED;
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot create the cache", status, NULL);
}

/* Not an error: some models work beyond their training context. But the loss of quality must not be
 * blamed on the cache. */
static void warn_of_context(const quire_model *model, int32_t context) {
    static bool told; /* warn once, also if several caches are compared */
    quire_model_info info;
    quire_model_get_info(model, &info);
    if (context > info.context && !told)
        fprintf(
            stderr,
            "quire: warning: the model was trained with a context of %d tokens; its predictions "
            "may be poor in a context of %d\n",
            (int)info.context, (int)context);
    told = told || context > info.context;
}

int cli_session_open(const cli_model_args *args, const quire_model *model,
                     const cli_session_request *request, quire_session **session) {
    quire_session_options options;
    quire_session_options_default(&options);
    if (!fill_policy(args, request->kv, &options.policy))
        return CLI_USAGE;
    options.raw = (quire_type)args->raw;
    options.context = args->context ? args->context : request->context;
    if (!request->quiet)
        warn_of_context(model, options.context);
    options.n_threads = args->n_threads;
    options.max_kv = args->max_kv;
    options.keep = cli_model_args_keep(args);
    options.kv_bytes = args->kv_bytes;
    options.exact_trim = request->exact_trim;
    options.order_from = request->order_from;
    options.plain_rounding = args->plain_rounding;
    options.stop = request->stop;
    options.stop_user = request->stop_user;
    if (request->max_seqs)
        options.max_seqs = request->max_seqs;
    options.full_seqs = request->full_seqs;
    if (request->max_rows)
        options.max_rows = request->max_rows;
    if (request->max_logits)
        options.max_logits = request->max_logits;
    const bool automatic = cli_auto_is(request->kv);
    if (!args->kv_layers && !automatic)
        return create(model, &options, request->quiet, session);

    quire_model_info info;
    quire_model_get_info(model, &info);
    quire_pair *pairs = calloc((size_t)info.n_layers, sizeof *pairs);
    if (!pairs)
        return cli_quire_error("cannot create the cache", QUIRE_E_NOMEM, "out of memory");
    options.layers = pairs;
    int status = CLI_OK;
    if (automatic)
        status = cli_auto_pairs(args, model, request, pairs);
    else if (!parse_layers(args->kv_layers, info.n_layers, pairs))
        status = CLI_USAGE;
    if (status == CLI_OK)
        status = create(model, &options, request->quiet, session);
    free(pairs);
    return status;
}

/* ------------------------------------------------------------------ lists, files, tokens */

int cli_kv_names_after_none(const cli_model_args *args, char ***names, size_t *n) {
    const size_t n_bytes = strlen("none,") + strlen(args->kv) + 1;
    char *text = malloc(n_bytes);
    if (!text)
        return cli_quire_error("cannot evaluate", QUIRE_E_NOMEM, "out of memory");
    snprintf(text, n_bytes, "none,%s", args->kv);
    *names = cli_list_split(text, n);
    free(text);
    if (!*names)
        return CLI_FAILURE;
    return cli_kv_names_check(args, *names, *n) ? CLI_OK : CLI_USAGE;
}

static char *read_all(FILE *file, size_t *n_bytes) {
    size_t capacity = 1 << 16;
    char *text = malloc(capacity);
    *n_bytes = 0;
    while (text) {
        *n_bytes += fread(text + *n_bytes, 1, capacity - *n_bytes - 1, file);
        if (*n_bytes < capacity - 1)
            break;
        capacity *= 2;
        char *larger = realloc(text, capacity);
        if (!larger)
            free(text);
        text = larger;
    }
    if (text)
        text[*n_bytes] = '\0';
    return text;
}

char *cli_file_read(const char *path, size_t *n_bytes) {
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (!file) {
        cli_error("cannot open '%s': %s", path, strerror(errno));
        return NULL;
    }
    char *text = read_all(file, n_bytes);
    bool failed = ferror(file) != 0;
    if (!standard)
        fclose(file);
    if (failed || !text) {
        cli_error("cannot read '%s': %s", path, failed ? strerror(errno) : "out of memory");
        free(text);
        return NULL;
    }
    return text;
}

int32_t *cli_tokenize(const quire_model *model, const char *text, size_t n_bytes, int flags,
                      int32_t *n_tokens) {
    quire_status status = quire_model_tokenize(model, text, n_bytes, flags, NULL, 0, n_tokens);
    if (status == QUIRE_E_TOO_BIG || (status == QUIRE_OK && *n_tokens == 0)) {
        int32_t capacity = *n_tokens, *tokens = malloc(((size_t)capacity + 1) * sizeof *tokens);
        status = tokens
                     ? quire_model_tokenize(model, text, n_bytes, flags, tokens, capacity, n_tokens)
                     : QUIRE_E_NOMEM;
        if (status == QUIRE_OK)
            return tokens;
        free(tokens);
    }
    cli_quire_error("cannot tokenize the text", status, NULL);
    return NULL;
}
