/* cmd_version.c: quire version. Prints the version, the kernels in use and the models that run. */
#include "bench/synth_cache.h"
#include "command.h"
#include "options/args.h"
#include "output/report.h"

#include <stdio.h>

#if QUIRE_ENGINE
#include "quire_engine.h"
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

#if defined(__aarch64__)
#define ARCH "aarch64"
#elif defined(__x86_64__)
#define ARCH "x86-64"
#else
#define ARCH "other"
#endif

/* Kernels are chosen when a pool is created, so this creates one to ask. */
static int open_tiny_cache(cli_cache *cache) {
    cli_cache_options options = {.shape = {1, 1, 64, 64},
                                 .n_layers = 1,
                                 .max_tokens = QUIRE_PAGE_TOKENS,
                                 .attend_rows = 1,
                                 .raw = QUIRE_F16,
                                 .n_workers = 1};
    if (!cli_policy_parse("none", -1, &options.policy))
        return CLI_FAILURE;
    return cli_cache_open(cache, &options);
}

/* Of models that this build can run; NULL after the last. */
static const char *architecture_at(size_t index) {
#if QUIRE_ENGINE
    return quire_architecture_at(index);
#else
    (void)index;
    return NULL;
#endif
}

static json_t *architectures(void) {
    json_t *list = json_array();
    const char *name;
    for (size_t i = 0; (name = architecture_at(i)); i++)
        json_array_append_new(list, json_string(name));
    return list;
}

static int print_version(const char *isa, bool json) {
    if (json) {
        return cli_print_json(json_pack("{s:s, s:i, s:s, s:s, s:s, s:o}", "version",
                                        quire_version(), "page_format", QUIRE_PAGE_FORMAT,
                                        "compiler", COMPILER, "arch", ARCH, "isa", isa, "models",
                                        architectures()));
    }
    printf("quire        %s\n", quire_version());
    printf("page format  %d\n", QUIRE_PAGE_FORMAT);
    printf("compiler     %s\n", COMPILER);
    printf("arch         %s\n", ARCH);
    printf("kernels      %s\n", isa);
    const char *name;
    for (size_t i = 0; (name = architecture_at(i)); i++)
        printf("%s%s", i ? " " : "models       ", name);
    if (architecture_at(0))
        putchar('\n');
    return CLI_OK;
}

int cli_version_run(int argc, char **argv) {
    bool json = false;
    const cli_option options[] = {
        cli_flag("json", &json, "print JSON"),
    };
    static const char *const examples[] = {"quire version", "quire version --json", NULL};
    const cli_usage usage = {.command = "version",
                             .about = "Prints the version, the page format, the compiler, the "
                                      "kernels in use on this machine, and the architectures of "
                                      "models that run.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;

    cli_cache cache = {.pool = NULL};
    status = open_tiny_cache(&cache);
    if (status == CLI_OK)
        status = print_version(quire_pool_isa(cache.pool), json);
    cli_cache_close(&cache);
    return status;
}
