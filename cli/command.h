/* command.h: the commands of the program, and their exit statuses. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

enum { CLI_OK = 0, CLI_FAILURE = 1, CLI_USAGE = 2 };

typedef struct cli_command {
    const char *name; /* NULL ends a list */
    const char *summary;
    int (*run)(int argc, char **argv); /* argv: the words after the name; returns an exit status */
    const struct cli_command *subcommands; /* instead of `run`: a group such as "bench" */
} cli_command;

int cli_version_run(int argc, char **argv);
int cli_codecs_run(int argc, char **argv);
int cli_inspect_run(int argc, char **argv);
int cli_convert_run(int argc, char **argv);
int cli_bench_attn_run(int argc, char **argv);
int cli_bench_ops_run(int argc, char **argv);
int cli_bench_save_run(int argc, char **argv);
int cli_bench_seal_run(int argc, char **argv);
#if QUIRE_ENGINE
int cli_run_run(int argc, char **argv);
int cli_chat_run(int argc, char **argv);
int cli_serve_run(int argc, char **argv);
int cli_probe_run(int argc, char **argv);
int cli_bench_model_run(int argc, char **argv);
int cli_eval_kld_run(int argc, char **argv);
int cli_eval_ppl_run(int argc, char **argv);
int cli_eval_agree_run(int argc, char **argv);
int cli_eval_niah_run(int argc, char **argv);

extern const cli_command cli_eval_commands[];
#endif

#if QUIRE_STORE
int cli_store_list_run(int argc, char **argv);
int cli_store_stat_run(int argc, char **argv);
int cli_store_export_run(int argc, char **argv);
int cli_store_import_run(int argc, char **argv);
int cli_store_verify_run(int argc, char **argv);
int cli_store_remove_run(int argc, char **argv);

extern const cli_command cli_store_commands[];
#endif

extern const cli_command cli_bench_commands[];

#endif
