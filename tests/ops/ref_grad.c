/* SPDX-License-Identifier: Apache-2.0 */
/* The definitions (ref_grad.h). */
#include "ref_grad.h"

#include <math.h>
#include <stdlib.h>

void ref_linear_backward(const double *dy, const double *w, bool accumulate, int64_t t, int64_t n, int64_t k,
                         double *dx, double *magnitude)
{
    for (int64_t i = 0; i < t; i++) {
        for (int64_t l = 0; l < k; l++) {
            double sum = accumulate ? dx[i * k + l] : 0.0;
            double size = fabs(sum);
            for (int64_t j = 0; j < n; j++) {
                double term = dy[i * n + j] * w[j * k + l];
                sum += term;
                size += fabs(term);
            }
            dx[i * k + l] = sum;
            magnitude[i * k + l] = size;
        }
    }
}

void ref_weight_gradient(const double *dy, const double *x, int64_t t, int64_t n, int64_t k, double *c,
                         double *magnitude)
{
    for (int64_t j = 0; j < n; j++) {
        for (int64_t l = 0; l < k; l++) {
            double sum = 0.0, size = 0.0;
            for (int64_t i = 0; i < t; i++) {
                double term = dy[i * n + j] * x[i * k + l];
                sum += term;
                size += fabs(term);
            }
            c[j * k + l] = sum;
            magnitude[j * k + l] = size;
        }
    }
}

void ref_rmsnorm_backward(const double *x, const double *gamma, double eps, int64_t groups, int64_t t, int64_t c,
                          const double *dy, bool accumulate, double *dx, double *magnitude)
{
    int64_t width = c / groups;
    for (int64_t at = 0; at < t * c; at += width) {
        double squares = 0.0, along = 0.0, along_size = 0.0;
        for (int64_t i = 0; i < width; i++) {
            double term = x[at + i] * gamma[i] * dy[at + i];
            squares += x[at + i] * x[at + i];
            along += term;
            along_size += fabs(term);
        }
        double r = 1.0 / sqrt(squares / (double)width + eps);
        for (int64_t i = 0; i < width; i++) {
            double old = accumulate ? dx[at + i] : 0.0;
            double first = r * gamma[i] * dy[at + i], cube = x[at + i] * r * r * r / (double)width;
            dx[at + i] = old + first - cube * along;
            magnitude[at + i] = fabs(old) + fabs(first) + fabs(cube) * along_size;
        }
    }
}

/* One query of one head; p is scratch for the keys it sees. */
static void query_backward(const ref_attention_gradients *a, int64_t head, int64_t t, double *p)
{
    int64_t d = a->d, kv_head = head / (a->heads / a->kv_heads), at = (t * a->heads + head) * d;
    int64_t first = a->window > 0 && t - a->window + 1 > 0 ? t - a->window + 1 : 0;
    double peak = -INFINITY, sum = 0.0, along = 0.0, along_size = 0.0;
    for (int64_t s = first; s <= t; s++) {
        double score = 0.0;
        for (int64_t i = 0; i < d; i++) {
            score += a->q[at + i] * a->k[(s * a->kv_heads + kv_head) * d + i];
        }
        p[s] = score * a->scale;
        peak = fmax(peak, p[s]);
    }
    for (int64_t s = first; s <= t; s++) {
        p[s] = exp(p[s] - peak);
        sum += p[s];
    }
    for (int64_t i = 0; i < d; i++) {
        along += a->o[at + i] * a->d_o[at + i];
        along_size += fabs(a->o[at + i] * a->d_o[at + i]);
    }
    for (int64_t s = first; s <= t; s++) {
        int64_t key = (s * a->kv_heads + kv_head) * d;
        double probability = p[s] / sum, dp = 0.0, size = along_size;
        for (int64_t i = 0; i < d; i++) {
            dp += a->d_o[at + i] * a->v[key + i];
            size += fabs(a->d_o[at + i] * a->v[key + i]);
        }
        double ds = probability * (dp - along) * a->scale;
        size *= probability * a->scale;
        for (int64_t i = 0; i < d; i++) {
            a->dq[at + i] += ds * a->k[key + i];
            a->dq_size[at + i] += size * fabs(a->k[key + i]);
            a->dk[key + i] += ds * a->q[at + i];
            a->dk_size[key + i] += size * fabs(a->q[at + i]);
            a->dv[key + i] += probability * a->d_o[at + i];
            a->dv_size[key + i] += probability * fabs(a->d_o[at + i]);
        }
    }
}

void ref_attention_backward(const ref_attention_gradients *a)
{
    double *p = calloc((size_t)a->t + 1, sizeof *p);
    if (p == NULL) {
        abort();
    }
    for (int64_t head = 0; head < a->heads; head++) {
        for (int64_t t = 0; t < a->t; t++) {
            query_backward(a, head, t, p);
        }
    }
    free(p);
}

void ref_silu_mul_backward(const double *gate, const double *up, const double *dy, int64_t n, double *dgate,
                           double *dup, double *dgate_size, double *dup_size)
{
    for (int64_t i = 0; i < n; i++) {
        double sigmoid = 1.0 / (1.0 + exp(-gate[i]));
        double through = dy[i] * up[i] * sigmoid;
        dgate[i] = through * (1.0 + gate[i] * (1.0 - sigmoid));
        dgate_size[i] = fabs(through) * (1.0 + fabs(gate[i]) * (1.0 - sigmoid));
        dup[i] = dy[i] * gate[i] * sigmoid;
        dup_size[i] = fabs(dup[i]);
    }
}

typedef struct {
    double size;
    int64_t index;
} ranked;

static int larger_first(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    if (a->size != b->size) {
        return a->size > b->size ? -1 : 1;
    }
    return a->index < b->index ? -1 : 1;
}

double ref_squared_error(const double *y, const double *target, int64_t t, int64_t rows, int64_t c, int64_t suppress,
                         double factor, double *dy)
{
    ranked *order = calloc((size_t)(rows * c + 1), sizeof *order);
    double loss = 0.0;
    if (order == NULL) {
        abort();
    }
    for (int64_t i = 0; i < t * c; i++) {
        dy[i] = 0.0;
    }
    for (int64_t i = 0; i < rows * c; i++) {
        order[i] = (ranked){fabs((double)(float)(y[i] - target[i])), i};
    }
    qsort(order, (size_t)(rows * c), sizeof *order, larger_first);
    for (int64_t i = suppress; i < rows * c; i++) {
        int64_t at = order[i].index;
        loss += order[i].size * order[i].size;
        dy[at] = factor * 2.0 * (double)(float)(y[at] - target[at]);
    }
    free(order);
    return loss;
}
