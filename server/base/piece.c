#include "base/piece.h"

#include <stdlib.h>

enum { USUAL_BYTES = 512 };

bool srv_piece_add(const quire_model *model, int32_t token, srv_text *text) {
    char usual[USUAL_BYTES], *bytes = usual;
    size_t n = 0;
    quire_status status = quire_model_piece(model, token, bytes, sizeof usual, &n);
    if (status == QUIRE_E_TOO_BIG && (bytes = malloc(n)))
        status = quire_model_piece(model, token, bytes, n, &n);
    if (status == QUIRE_OK)
        srv_text_add(text, bytes, n);
    if (bytes != usual)
        free(bytes);
    return status == QUIRE_OK && !text->failed;
}
