/* cmd_bench_save.c: quire bench save. Times saving and restoring a cache of synthetic tokens, and
 * plain writing and reading of as many bytes in the same directory, in turns. The best of each
 * counts. */
#include "bench/disk.h"
#include "bench/synth_cache.h"
#include "command.h"
#include "options/args.h"
#include "output/interrupt.h"
#include "output/output.h"
#include "output/progress.h"
#include "output/report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS_MAX = 1024, TOKENS_MAX = 1 << 24, RUNS_MAX = 100, PATH_BYTES = 4096, N_TIMES = 4 };

typedef struct save_options {
    const char *shape, *kv, *directory;
    int32_t n_layers, n_tokens, n_runs;
    bool json;
} save_options;

typedef enum timed { DISK_WRITE, SAVE, DISK_READ, RESTORE } timed;

typedef struct save_result {
    uint64_t bytes;
    double best[N_TIMES]; /* seconds */
    bool from_disk;       /* files were dropped from the page cache before they were read */
} save_result;

static void keep_best(save_result *r, timed what, double seconds) {
    if (r->best[what] == 0 || seconds < r->best[what])
        r->best[what] = seconds;
}

static int time_save(cli_cache *cache, const char *path, save_result *r) {
    unlink(path); /* the time should not include deleting the old file */
    const double start = cli_seconds();
    quire_status status = quire_seq_save(cache->seq, path, NULL);
    keep_best(r, SAVE, cli_seconds() - start);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot save the cache", status, NULL);
}

/* Restores into the pool that it came from, in place of the saved sequence. */
static int time_restore(cli_cache *cache, const char *path, save_result *r) {
    quire_file *file;
    quire_file_info info;
    quire_seq_free(cache->seq);
    cache->seq = NULL;
    const double start = cli_seconds();
    quire_status status = quire_file_open(&file, path);
    if (status == QUIRE_OK) {
        status = quire_seq_load(cache->pool, file, NULL, &cache->seq);
        quire_file_get_info(file, &info);
        r->bytes = info.bytes;
    }
    quire_file_close(file);
    keep_best(r, RESTORE, cli_seconds() - start);
    return status == QUIRE_OK ? CLI_OK : cli_quire_error("cannot restore the cache", status, NULL);
}

static int time_disk(const char *path, timed what, save_result *r) {
    const double seconds = what == DISK_WRITE ? cli_disk_write(path, (size_t)r->bytes)
                                              : cli_disk_read(path, (size_t)r->bytes);
    if (seconds < 0)
        return cli_quire_error("cannot measure the disk", QUIRE_E_IO, strerror(errno));
    keep_best(r, what, seconds);
    return CLI_OK;
}

static int measure(cli_cache *cache, const save_options *chosen, save_result *r) {
    char saved[PATH_BYTES], plain[PATH_BYTES];
    snprintf(saved, sizeof saved, "%s/quire-bench.%d.saved", chosen->directory, (int)getpid());
    snprintf(plain, sizeof plain, "%s/quire-bench.%d.plain", chosen->directory, (int)getpid());
    cli_interrupt_catch();                   /* two large files would stay */
    int status = time_save(cache, saved, r); /* a warm-up, which also gives the number of bytes */
    if (status == CLI_OK)
        status = time_restore(cache, saved, r);
    memset(r->best, 0, sizeof r->best);
    r->from_disk = true;
    for (int32_t i = 0; i < chosen->n_runs && status == CLI_OK; i++) {
        if (cli_interrupt_seen(NULL)) {
            status = CLI_INTERRUPTED;
            break;
        }
        status = time_disk(plain, DISK_WRITE, r);
        if (status == CLI_OK)
            status = time_save(cache, saved, r);
        r->from_disk = cli_disk_forget(plain) && cli_disk_forget(saved) && r->from_disk;
        if (status == CLI_OK)
            status = time_disk(plain, DISK_READ, r);
        if (status == CLI_OK)
            status = time_restore(cache, saved, r);
    }
    unlink(saved);
    unlink(plain);
    return status;
}

static double rate(const save_result *r, timed what) {
    return (double)r->bytes / r->best[what] / 1e9;
}

static int report(const save_options *chosen, const save_result *r) {
    const double saves = rate(r, SAVE) / rate(r, DISK_WRITE),
                 restores = rate(r, RESTORE) / rate(r, DISK_READ);
    if (chosen->json)
        return cli_print_json(
            json_pack("{s:s, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "kv", chosen->kv, "ctx",
                      (int)chosen->n_tokens, "bytes", (json_int_t)r->bytes, "save_gbps",
                      rate(r, SAVE), "disk_write_gbps", rate(r, DISK_WRITE), "save_ratio", saves,
                      "restore_gbps", rate(r, RESTORE), "disk_read_gbps", rate(r, DISK_READ),
                      "restore_ratio", restores, "from_disk", (int)r->from_disk));
    printf("file     %s, %d tokens, best of %d\n", cli_bytes(r->bytes).text, (int)chosen->n_tokens,
           (int)chosen->n_runs);
    printf("save     %.2f GB/s, %.2f times the disk's %.2f (both with fsync)\n", rate(r, SAVE),
           saves, rate(r, DISK_WRITE));
    printf("restore  %.2f GB/s, %.2f times the disk's %.2f (%s)\n", rate(r, RESTORE), restores,
           rate(r, DISK_READ),
           r->from_disk ? "neither file was cached" : "both files may be cached in memory");
    return CLI_OK;
}

static int bench(const save_options *chosen) {
    cli_cache_options options = {.n_layers = chosen->n_layers,
                                 .max_tokens = chosen->n_tokens,
                                 .attend_rows = 1,
                                 .raw = QUIRE_F16,
                                 .n_workers = cli_workers_default(),
                                 .seed = 1};
    if (!cli_shape_parse(chosen->shape, &options.shape) ||
        !cli_policy_parse(chosen->kv, -1, &options.policy) ||
        !cli_policy_fits(chosen->kv, &options.policy, &options.shape, options.raw))
        return CLI_USAGE;
    char some_file[PATH_BYTES];
    snprintf(some_file, sizeof some_file, "%s/quire-bench", chosen->directory);
    int status = cli_output_check(some_file);
    if (status != CLI_OK)
        return status;
    cli_cache cache;
    save_result result = {0};
    status = cli_cache_open(&cache, &options);
    if (status == CLI_OK)
        status = cli_cache_fill(&cache, chosen->n_tokens);
    if (status == CLI_OK)
        status = measure(&cache, chosen, &result);
    cli_cache_close(&cache);
    return status == CLI_OK ? report(chosen, &result) : status;
}

int cli_bench_save_run(int argc, char **argv) {
    save_options chosen = {.shape = "32x8x128",
                           .kv = "k4v4",
                           .directory = ".",
                           .n_layers = 8,
                           .n_tokens = 32000,
                           .n_runs = 5};
    const cli_option options[] = {
        cli_string("shape", &chosen.shape, "HxGxD", CLI_SHAPE_HELP),
        cli_int("layers", &chosen.n_layers, 1, LAYERS_MAX, "number of layers"),
        cli_int("ctx", &chosen.n_tokens, 1, TOKENS_MAX / 2, "number of tokens"),
        cli_string("kv", &chosen.kv, "NAME", "a preset or a pair K:V, see 'quire codecs'"),
        cli_string("dir", &chosen.directory, "DIR", "directory for the files"),
        cli_int("runs", &chosen.n_runs, 1, RUNS_MAX, "number of runs; the best counts"),
        cli_flag("json", &chosen.json, "print JSON"),
    };
    static const char *const examples[] = {"quire bench save --kv k8v4 --dir /var/tmp", NULL};
    const cli_usage usage = {.command = "bench save",
                             .about = "Times saving and restoring a cache of synthetic tokens, "
                                      "compared with plain sequential writing (with fsync) and "
                                      "reading of as many bytes in the same directory. Both files "
                                      "are dropped from the page cache before they are read.",
                             .options = options,
                             .n_options = sizeof options / sizeof options[0],
                             .examples = examples};
    int status;
    if (!cli_args_parse(&usage, argc, argv, &status))
        return status;
    return bench(&chosen);
}
