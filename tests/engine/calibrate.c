/* calibrate.c: quire_model_calibrate. Its result is a value: the same on any number of threads, not
 * needed once a session has it, and refused by a model with other layers; it can be stopped.
 * usage: calibrate MODEL OTHER_MODEL */
#include "quire_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "calibrate: %s (%s)\n", what, quire_last_error());
    exit(1);
}

static bool at_once(void *user) {
    (void)user;
    return true;
}

static quire_calibration *calibrate(const quire_model *model, int32_t n_threads) {
    quire_calibration_options o;
    quire_calibration_options_default(&o);
    o.n_threads = n_threads;
    quire_calibration *calibration;
    require(quire_model_calibrate(model, &o, &calibration) == QUIRE_OK, "cannot calibrate");
    return calibration;
}

static quire_status open_session(const quire_model *model, const char *kv,
                                 const quire_calibration *calibration, quire_session **session) {
    quire_session_options o;
    quire_session_options_default(&o);
    require(quire_policy_parse(kv, &o.policy) == QUIRE_OK, "policy");
    o.context = 256;
    o.calibration = calibration;
    require(quire_session_needs_calibration(model, &o) == (strcmp(kv, "k4v4") == 0),
            "which codecs need a calibration is wrong");
    return quire_session_create(session, model, &o);
}

/* The digest of the feedback is a line of it. */
static char *identity_of(const quire_model *model, quire_calibration *calibration) {
    quire_session *session;
    require(open_session(model, "k4v4", calibration, &session) == QUIRE_OK, "no session");
    quire_calibration_free(calibration);
    const char *identity;
    require(quire_session_identity(session, &identity) == QUIRE_OK, "identity");
    char *copy = malloc(strlen(identity) + 1);
    strcpy(copy, identity);
    quire_session_free(session);
    return copy;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    quire_model *model, *other;
    require(quire_model_load(&model, argv[1], NULL) == QUIRE_OK, "cannot load");
    require(quire_model_load(&other, argv[2], NULL) == QUIRE_OK, "cannot load");
    char *one = identity_of(model, calibrate(model, 1)),
         *two = identity_of(model, calibrate(model, 2));
    require(strcmp(one, two) == 0, "threads change the result");
    require(!strstr(one, "rounding plain"), "the session did not take the calibration");
    quire_session *session;
    require(open_session(model, "k8v4", NULL, &session) == QUIRE_OK, "k8v4 needs none");
    quire_session_free(session);
    require(open_session(model, "k4v4", NULL, &session) == QUIRE_E_INVALID && !session &&
                strstr(quire_last_error(), "quire_model_calibrate"),
            "a session without its calibration");
    quire_calibration *foreign = calibrate(other, 1);
    require(open_session(model, "k4v4", foreign, &session) == QUIRE_E_INVALID && !session,
            "a calibration of another model is taken");
    quire_calibration_free(foreign);
    quire_calibration_options stopped;
    quire_calibration_options_default(&stopped);
    stopped.stop = at_once;
    quire_calibration *none = foreign;
    require(quire_model_calibrate(model, &stopped, &none) == QUIRE_E_ABORTED && !none,
            "not stopped");
    free(one);
    free(two);
    quire_model_free(model);
    quire_model_free(other);
    return 0;
}
