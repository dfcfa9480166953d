// What fills in and checks a config beyond its keys: private to train_config.
// Each adds one message for each value or combination that cannot be honoured.
#pragma once

#include <string>
#include <vector>

#include "brigade/config/train_config.h"

namespace brigade {

// Fills config.model.decoder from model.config or from the file that model.name
// leads to; stays empty for an id that `find_model` does not know.
void find_decoder_config(
    const FindModel& find_model,
    TrainConfig& config,
    std::vector<std::string>& problems);

// Fills dp_size in where it is not given, then checks the whole layout.
void lay_out(
    int world_size,
    TrainConfig& config,
    std::vector<std::string>& problems);

// What the keys of the dataset ask of one another, and losses of pairs and of a
// teacher of the dataset and the batch. dp_size is filled in.
void check_data(const TrainConfig& config, std::vector<std::string>& problems);
// What the keys of gradient synchronisation, ZeRO and low-communication
// training ask of one another.
void check_data_parallel(
    const TrainConfig& config,
    std::vector<std::string>& problems);

// What an adapter asks of the model and its stages.
void check_adapter(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    std::vector<std::string>& problems);
// What mup asks of the model.
void check_mup(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    std::vector<std::string>& problems);
// What the model asks of keys, whatever the layout.
void check_model_keys(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    std::vector<std::string>& problems);
// Whether the model's rope_scaling is "dynamic" and sequences are longer than
// its max_position_embeddings.
bool goes_beyond_dynamic_rope(
    const TrainConfig& config,
    const DecoderConfig& decoder);

}  // namespace brigade
