/* man.h: man pages of the program, made from its command and option tables. */
#ifndef CLI_MAN_H
#define CLI_MAN_H

#include "command.h"

/* Writes quire.1 and a page for each command (quire-bench-attn.1 for `quire bench attn`) into
 * `directory`, which it creates if necessary. `program` has the commands as its subcommands. The
 * files are written through stdout. Returns an exit status. */
int cli_man_write(const cli_command *program, const char *directory);

#endif
