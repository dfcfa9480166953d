// model.init "pretrained": a stage's parameters from Hugging Face's files.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/param/param.h"

namespace brigade {

// Fills `params`, except an adapter's, from the safetensors of `folder`, which
// must be those of the whole model `decoder` (on every rank, whatever part it
// holds): see checkpoint/hugging_face.h. Padding is zeroed.
void load_pretrained(
    const std::filesystem::path& folder,
    const DecoderConfig& decoder,
    std::span<const Param> params);

}  // namespace brigade
