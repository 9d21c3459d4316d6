/* Minimax polynomials of 2^f, |f| <= 1/2, constant term first; X is applied to each coefficient.
 * Relative error: degree 3 (weights rounded to u8) 7.5e-5, degree 4 (fp16) 2.6e-6, degree 5
 * 7.5e-8. */
#ifndef QUIRE_KERN_SHARED_EXP2_H
#define QUIRE_KERN_SHARED_EXP2_H

#define EXP2_DEGREE_3(X)                                                                           \
    X(0.9999280571937561f), X(0.6932609677314758f), X(0.2426111251115799f), X(0.0551716685295105f)
#define EXP2_DEGREE_4(X)                                                                           \
    X(0.9999992847442627f), X(0.6931217908859253f), X(0.240247443318367f),                         \
        X(0.05591785907745361f), X(0.009570102207362652f)
#define EXP2_DEGREE_5(X)                                                                           \
    X(1.0000001192092896f), X(0.6931469440460205f), X(0.24022120237350464f),                       \
        X(0.05550713092088699f), X(0.009675540961325169f), X(0.0013276472454890609f)

#endif
