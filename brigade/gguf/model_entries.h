// A model's config as llama.cpp's entries, and back.
#pragma once

#include <string>
#include <vector>

#include "brigade/gguf/format.h"
#include "brigade/gguf/reader.h"
#include "brigade/model_spec/decoder_config.h"

namespace brigade {

// general.architecture. Llama and Mistral are one to llama.cpp.
const char* gguf_architecture(Architecture architecture);

// What of the config llama.cpp's graph of that architecture does not compute,
// one line each; empty: it computes the same as Brigade.
std::vector<std::string> reasons_against_gguf(const DecoderConfig& config);

// The entries "ARCHITECTURE.*", after general.architecture. Precondition: there
// are no such reasons.
std::vector<GgufEntry> model_entries(const DecoderConfig& config);

// By what each rotary frequency is divided: rope_freqs.weight [D/2], which is
// how llama3's rope scaling is stored. Empty for other scalings.
std::vector<float> rope_divisors(const DecoderConfig& config);
inline constexpr const char* kRopeDivisors = "rope_freqs.weight";

// "expert_gating_func": a router's scores are sigmoids.
inline constexpr uint32_t kGgufSigmoid = 2;

// Whether llama.cpp's graph divides the weights of a token's experts by their
// sum. With DeepSeek-V3's router an entry says it.
bool gguf_normalises(Architecture architecture);

// By whose root llama.cpp divides Gemma's scores.
double gemma_attention_scalar(const DecoderConfig& config);
// What yarn multiplies cos and sin by where a config does not say.
double usual_yarn_magnitude(double factor);

// The config of a file. Throws DataError naming what Brigade cannot compute:
// another architecture, an unknown rope scaling.
DecoderConfig read_gguf_config(const GgufFile& file);

}  // namespace brigade
