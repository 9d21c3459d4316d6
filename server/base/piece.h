/* piece.h: the bytes of a token. */
#ifndef SERVER_BASE_PIECE_H
#define SERVER_BASE_PIECE_H

#include "base/growing_text.h"
#include "quire_engine.h"

/* Adds the bytes of a token, however many. False: there is no such token, or no memory. */
bool srv_piece_add(const quire_model *model, int32_t token, srv_text *text);

#endif
