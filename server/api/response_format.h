/* response_format.h: what constrains the text of a reply -> one grammar. */
#ifndef SERVER_API_RESPONSE_FORMAT_H
#define SERVER_API_RESPONSE_FORMAT_H

#include "api/request.h"
#include "api/tools.h"

/* Reads `response_format` and `grammar`, and sets the work's grammar from them and from the tools
 * (NULL: none). */
bool api_read_format(api_parser *parser, const api_tools *tools);

#endif
