/* cmd_eval.c: quire eval: what can be evaluated. */
#include "command.h"

#include <stddef.h>

const cli_command cli_eval_commands[] = {
    {"kld", "how far a cache moves a model's predictions on a text", cli_eval_kld_run, NULL},
    {"ppl", "how well a model predicts a text", cli_eval_ppl_run, NULL},
    {"agree", "how long a text stays that of the raw cache, and how good it is then",
     cli_eval_agree_run, NULL},
    {"niah", "whether a fact in a long text is found", cli_eval_niah_run, NULL},
    {NULL, NULL, NULL, NULL},
};
