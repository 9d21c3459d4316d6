/* gbnf_check.h: whether a grammar may be given to libllama.
 *
 * libllama prints the grammars that it cannot read, recurses as deeply as parentheses and rules
 * nest, and for some grammars never returns ("a"{3,2}, or rules that begin with themselves behind
 * something that may be empty). Nobody but a server takes grammars from strangers, so this is
 * looked at here. */
#ifndef SERVER_API_GBNF_CHECK_H
#define SERVER_API_GBNF_CHECK_H

#include <stdbool.h>
#include <stddef.h>

/* False: `why` says what is wrong, without a full stop. Refuses a little more than libllama:
 * rules that are defined twice, tokens (<..>), repetitions of what may be empty or more than 2000
 * times. */
bool api_gbnf_check(const char *grammar, char *why, size_t n_why);

#endif
