// Update rules and hooks: generated from mixprec/optimizer/rules by `python -m mixprec.optimizer.rules.generate`.
// Included by update.inl. Each goes over `count` elements.
#include <cmath>

#include "update.h"

namespace native {
namespace INSTRUCTIONS {

void ruleSgd(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_];
        const float grad = grad_[i_];
        param -= lr * grad;
    }
}

void ruleMomentumSgd(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], momentum = numbers_[1];
    float *__restrict v_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        v = momentum * v - lr * grad;
        param += v;
    }
}

void ruleCorrectedMomentumSgd(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], momentum = numbers_[1];
    float *__restrict v_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        v = momentum * v - grad;
        param += lr * v;
    }
}

void ruleNesterovAg(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], momentum = numbers_[1], momentum_squared = numbers_[2], lr_now = numbers_[3];
    float *__restrict v_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        v = momentum * v - lr * grad;
        param += momentum_squared * v;
        param -= lr_now * grad;
    }
}

void ruleAdam(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float eps = numbers_[0], one_minus_beta1 = numbers_[1], one_minus_beta2 = numbers_[2], alpha_t = numbers_[3], keep = numbers_[4], minus_eta = numbers_[5];
    float *__restrict m_s = states_[0], *__restrict v_s = states_[1];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &m = m_s[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
        param = keep * param + minus_eta * (alpha_t / (sqrtf(v) + eps) * m);
    }
}

void ruleAmsGrad(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float eps = numbers_[0], one_minus_beta1 = numbers_[1], one_minus_beta2 = numbers_[2], alpha_t = numbers_[3], keep = numbers_[4], minus_eta = numbers_[5];
    float *__restrict m_s = states_[0], *__restrict v_s = states_[1], *__restrict vhat_s = states_[2];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &m = m_s[i_], &v = v_s[i_], &vhat = vhat_s[i_];
        const float grad = grad_[i_];
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
        vhat = v > vhat || v != v ? v : vhat;
        param = keep * param + minus_eta * (alpha_t / (sqrtf(vhat) + eps) * m);
    }
}

void ruleAdaBound(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float eps = numbers_[0], one_minus_beta1 = numbers_[1], one_minus_beta2 = numbers_[2], alpha_t = numbers_[3], keep = numbers_[4], minus_eta = numbers_[5], lower = numbers_[6], upper = numbers_[7];
    float *__restrict m_s = states_[0], *__restrict v_s = states_[1];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &m = m_s[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
        float rate = alpha_t / (sqrtf(v) + eps);
        rate = rate < lower || lower != lower ? lower : rate;
        rate = rate > upper || upper != upper ? upper : rate;
        param = keep * param + minus_eta * (rate * m);
    }
}

void ruleAmsBound(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float eps = numbers_[0], one_minus_beta1 = numbers_[1], one_minus_beta2 = numbers_[2], alpha_t = numbers_[3], keep = numbers_[4], minus_eta = numbers_[5], lower = numbers_[6], upper = numbers_[7];
    float *__restrict m_s = states_[0], *__restrict v_s = states_[1], *__restrict vhat_s = states_[2];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &m = m_s[i_], &v = v_s[i_], &vhat = vhat_s[i_];
        const float grad = grad_[i_];
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
        vhat = v > vhat || v != v ? v : vhat;
        float rate = alpha_t / (sqrtf(vhat) + eps);
        rate = rate < lower || lower != lower ? lower : rate;
        rate = rate > upper || upper != upper ? upper : rate;
        param = keep * param + minus_eta * (rate * m);
    }
}

void ruleAdaGrad(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], eps = numbers_[1];
    float *__restrict h_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &h = h_s[i_];
        const float grad = grad_[i_];
        h += grad * grad;
        param -= lr * grad / (sqrtf(h) + eps);
    }
}

void ruleAdaDelta(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float rho = numbers_[0], eps = numbers_[1], one_minus_rho = numbers_[2];
    float *__restrict msg_s = states_[0], *__restrict msdx_s = states_[1];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &msg = msg_s[i_], &msdx = msdx_s[i_];
        const float grad = grad_[i_];
        msg = rho * msg + one_minus_rho * grad * grad;
        const float dx = sqrtf((msdx + eps) / (msg + eps)) * grad;
        msdx = rho * msdx + one_minus_rho * dx * dx;
        param -= dx;
    }
}

void ruleRmsProp(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], alpha = numbers_[1], eps = numbers_[2], one_minus_alpha = numbers_[3];
    float *__restrict ms_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &ms = ms_s[i_];
        const float grad = grad_[i_];
        ms = alpha * ms + one_minus_alpha * grad * grad;
        param -= lr * grad / (sqrtf(ms) + eps);
    }
}

void ruleRmsPropEpsInsideSqrt(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], alpha = numbers_[1], eps = numbers_[2], one_minus_alpha = numbers_[3];
    float *__restrict ms_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &ms = ms_s[i_];
        const float grad = grad_[i_];
        ms = alpha * ms + one_minus_alpha * grad * grad;
        param -= lr * grad / sqrtf(ms + eps);
    }
}

void ruleRmsPropGraves(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], alpha = numbers_[1], momentum = numbers_[2], eps = numbers_[3], one_minus_alpha = numbers_[4];
    float *__restrict n_s = states_[0], *__restrict g_s = states_[1], *__restrict delta_s = states_[2];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &n = n_s[i_], &g = g_s[i_], &delta = delta_s[i_];
        const float grad = grad_[i_];
        n = alpha * n + one_minus_alpha * grad * grad;
        g = alpha * g + one_minus_alpha * grad;
        delta = momentum * delta - lr * grad / sqrtf(n - g * g + eps);
        param += delta;
    }
}

void ruleSmorms3(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], eps = numbers_[1];
    float *__restrict mem_s = states_[0], *__restrict g_s = states_[1], *__restrict g2_s = states_[2];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &mem = mem_s[i_], &g = g_s[i_], &g2 = g2_s[i_];
        const float grad = grad_[i_];
        const float r = 1 / (mem + 1);
        g = (1 - r) * g + r * grad;
        g2 = (1 - r) * g2 + r * grad * grad;
        const float x = g * g / (g2 + eps);
        param -= grad * (x > lr ? lr : x) / (sqrtf(g2) + eps);
        mem = 1 + mem * (1 - x);
    }
}

void ruleMsvag(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], eta = numbers_[1], weight_decay_rate = numbers_[2], one_minus_beta = numbers_[3], one_minus_beta_power = numbers_[4], rho = numbers_[5], one_minus_rho = numbers_[6];
    float *__restrict m_s = states_[0], *__restrict v_s = states_[1];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &m = m_s[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        m += one_minus_beta * (grad - m);
        v += one_minus_beta * (grad * grad - v);
        const float mean = m / one_minus_beta_power;
        const float square = mean * mean;
        const float variance = (v / one_minus_beta_power - square) / one_minus_rho;
        float factor = square / (square + rho * variance);
        factor = factor != factor ? 0.0f : factor < 0 ? 0.0f : factor > 1 ? 1.0f : factor;
        param -= eta * (lr * mean * factor + weight_decay_rate * param);
    }
}

void ruleLarsUnadapted(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], momentum = numbers_[1], weight_decay = numbers_[2];
    float *__restrict v_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        v = momentum * v + lr * (grad + weight_decay * param);
        param -= v;
    }
}

void ruleLambUnadapted(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], eps = numbers_[1], weight_decay = numbers_[2], one_minus_beta1 = numbers_[3], one_minus_beta2 = numbers_[4], fix1 = numbers_[5], fix2 = numbers_[6];
    float *__restrict m_s = states_[0], *__restrict v_s = states_[1];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &m = m_s[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        m += one_minus_beta1 * (grad - m);
        v += one_minus_beta2 * (grad * grad - v);
        const float step = m / fix1 / (sqrtf(v / fix2) + eps) + weight_decay * param;
        param -= lr * step;
    }
}

void ruleSgdw(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], momentum = numbers_[1], keep = numbers_[2];
    float *__restrict v_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        v = momentum * v + grad;
        param = keep * param - lr * v;
    }
}

void ruleSgdwNesterov(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], momentum = numbers_[1], keep = numbers_[2];
    float *__restrict v_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &v = v_s[i_];
        const float grad = grad_[i_];
        v = momentum * v + grad;
        param = keep * param - lr * (grad + momentum * v);
    }
}

void ruleScheduleFreeSgd(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], weight_decay = numbers_[1], first = numbers_[2], c = numbers_[3], y_rate = numbers_[4];
    float *__restrict z_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &z = z_s[i_];
        const float grad = grad_[i_];
        const float g = grad + weight_decay * param;
        z = first != 0.0f ? param : z;
        param += c * (z - param);
        param += y_rate * g;
        z -= lr * g;
    }
}

void ruleLion(
    const float *numbers_, float *__restrict param_, const float *__restrict grad_, float *const *states_, long count_) {
    const float lr = numbers_[0], beta1 = numbers_[1], beta2 = numbers_[2], one_minus_beta1 = numbers_[3], one_minus_beta2 = numbers_[4], keep = numbers_[5];
    float *__restrict m_s = states_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &param = param_[i_], &m = m_s[i_];
        const float grad = grad_[i_];
        const float direction = beta1 * m + one_minus_beta1 * grad;
        param = keep * param - lr * (direction > 0 ? 1.0f : direction < 0 ? -1.0f : direction == 0 ? 0.0f : direction);
        m = beta2 * m + one_minus_beta2 * grad;
    }
}

void hookWeightDecay(
    const float *numbers_, const float *__restrict param_, float *__restrict grad_, long count_) {
    const float rate = numbers_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &grad = grad_[i_];
        const float param = param_[i_];
        grad += rate * param;
    }
}

void hookLasso(
    const float *numbers_, const float *__restrict param_, float *__restrict grad_, long count_) {
    const float rate = numbers_[0];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &grad = grad_[i_];
        const float param = param_[i_];
        grad += rate * (param > 0 ? 1.0f : param < 0 ? -1.0f : param == 0 ? 0.0f : param);
    }
}

void hookGradientHardClipping(
    const float *numbers_, const float *__restrict param_, float *__restrict grad_, long count_) {
    const float lower_bound = numbers_[0], upper_bound = numbers_[1];
    for (long i_ = 0; i_ < count_; ++i_) {
        float &grad = grad_[i_];
        grad = grad < lower_bound ? lower_bound : grad;
        grad = grad > upper_bound ? upper_bound : grad;
    }
}

void (*const RULES[])(const float *, float *, const float *, float *const *, long) = {
    ruleSgd,
    ruleMomentumSgd,
    ruleCorrectedMomentumSgd,
    ruleNesterovAg,
    ruleAdam,
    ruleAmsGrad,
    ruleAdaBound,
    ruleAmsBound,
    ruleAdaGrad,
    ruleAdaDelta,
    ruleRmsProp,
    ruleRmsPropEpsInsideSqrt,
    ruleRmsPropGraves,
    ruleSmorms3,
    ruleMsvag,
    ruleLarsUnadapted,
    ruleLambUnadapted,
    ruleSgdw,
    ruleSgdwNesterov,
    ruleScheduleFreeSgd,
    ruleLion,
};

void (*const HOOKS[])(const float *, const float *, float *, long) = {
    hookWeightDecay,
    hookLasso,
    hookGradientHardClipping,
};

}  // namespace INSTRUCTIONS
}  // namespace native
