/* cmd_eval.c: the commands of quire eval. */
#include "command.h"

#include <stddef.h>

const cli_command cli_eval_commands[] = {
    {"kld", "measure how much a cache changes a model's predictions on a text", cli_eval_kld_run,
     NULL},
    {"ppl", "measure how well a model predicts a text", cli_eval_ppl_run, NULL},
    {"agree", "compare generated texts with those of a raw cache", cli_eval_agree_run, NULL},
    {"niah", "test whether a model finds a fact in a long text", cli_eval_niah_run, NULL},
    {NULL, NULL, NULL, NULL},
};
