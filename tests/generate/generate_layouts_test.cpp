// A checkpoint gives the same text under every layout. Ranks are threads; the
// oracle computes every token from the whole text, on one rank and without a
// cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/save.h"
#include "brigade/generate/inference_config.h"
#include "brigade/generate/text_generator.h"
#include "brigade/model/decoder_model.h"
#include "brigade/model/init_weights.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/tokenizer/tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/support/parsed_config.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 24;
constexpr int64_t kEos = 257;  // plain bytes' end token

// 4 layers, 4 heads, 2 kv heads, an odd vocabulary, and weights large enough
// for the text to vary. The parameter selects the head or layers.
class GenerateLayouts : public ::testing::TestWithParam<std::string> {
 protected:
  GenerateLayouts() {
    auto json = testing::tiny_run("none")["model"]["config"];
    if (GetParam() == "Experts")
      json = testing::with_experts(json);
    json["tie_word_embeddings"] = GetParam() == "Tied";
    if (GetParam() == "DynamicRotary") {
      json["max_position_embeddings"] = 8;
      json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 3.0}};
    }
    json["initializer_range"] = 0.4;
    decoder_ = parsed_config(json);
    model_ = std::make_shared<DecoderModel>(
        std::make_shared<ModelContext>(single_rank_context(decoder_)),
        whole_model(decoder_));
    const torch::NoGradGuard no_grad;
    auto weights = model_->named_parameters();
    for (const ParameterRow& info : list_parameters(decoder_)) {
      weights[info.name].copy_(initial_weight(info, 3));
      // As after training, the bias decides some choices.
      if (info.role == ParameterRole::kRouterBias)
        weights[info.name].copy_(torch::arange(8).remainder(3) * 0.1);
    }
    save();
  }
  void save() const {
    auto weights = model_->named_parameters();
    CheckpointToSave checkpoint;
    for (const ParameterRow& info : list_parameters(decoder_))
      checkpoint.weights.push_back(
          {.name = info.name, .tensor = weights[info.name].detach()});
    checkpoint.manifest.dtype = "float32";
    checkpoint.manifest.model = to_hugging_face_json(decoder_, "float32");
    checkpoint.manifest.tokenizer = "bytes";
    save_checkpoint(path(), std::move(checkpoint), SaveRanks{});
  }
  fs::path path() const { return folder_ / "saved"; }
  GenerateOptions options() const {
    GenerateOptions options;
    options.model.path = path();
    options.prompts = {"Once"};
    options.max_tokens = kTokens;
    options.temperature = 0;
    return options;
  }

  // What each rank writes. `more` holds further overrides.
  std::vector<std::string> write_under(
      const ParallelDims& dims,
      const GenerateOptions& options,
      const std::vector<ConfigOverride>& more = {}) const {
    std::vector<ConfigOverride> overrides = {
        {"distributed.dp_size=" + std::to_string(dims.dp)},
        {"distributed.tp_size=" + std::to_string(dims.tp)},
        {"distributed.pp_size=" + std::to_string(dims.pp)},
        {"distributed.cp_size=" + std::to_string(dims.cp)}};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const TrainConfig config = inference_config(
        StoredModel(options.model), overrides, dims.world_size());
    std::vector<std::string> texts(static_cast<size_t>(dims.world_size()));
    testing::run_ranks_with_store(
        dims.world_size(), [&](int rank, const StorePtr& store) {
          const ProcessMesh mesh(dims, rank, store);
          std::string& text = texts[static_cast<size_t>(rank)];
          generate_text(
              options, config, mesh, [&](size_t, std::string_view piece) {
                text += piece;
              });
          mesh.world()->barrier();
        });
    return texts;
  }

  // Rank 0's texts, by prompt.
  std::pair<std::vector<std::string>, GenerateResult> write_all(
      const ParallelDims& dims,
      const GenerateOptions& options) const {
    const TrainConfig config = inference_config(
        StoredModel(options.model),
        {{"distributed.dp_size=" + std::to_string(dims.dp)},
         {"distributed.tp_size=" + std::to_string(dims.tp)},
         {"distributed.pp_size=" + std::to_string(dims.pp)}},
        dims.world_size());
    std::vector<std::string> texts(options.prompts.size());
    GenerateResult result;
    testing::run_ranks_with_store(
        dims.world_size(), [&](int rank, const StorePtr& store) {
          const ProcessMesh mesh(dims, rank, store);
          GenerateResult mine = generate_text(
              options,
              config,
              mesh,
              [&](size_t prompt, std::string_view piece) {
                if (rank == 0)
                  texts[prompt] += piece;
              });
          if (rank == 0)
            result = mine;
          mesh.world()->barrier();
        });
    return {texts, result};
  }

  // The prompt's tokens with those that the template puts before a text.
  static std::vector<int32_t> prompt_ids(const std::string& text) {
    return load_tokenizer("bytes")->encode(
        text, {.special_tokens = SpecialTokens::kTemplate});
  }
  // The prompt's tokens and the greedy ones that follow, each computed from the
  // whole text.
  std::vector<int32_t> naive_ids(const std::string& text) const {
    std::vector<int32_t> ids = prompt_ids(text);
    for (int64_t i = 0; i < kTokens; ++i) {
      const std::vector<int64_t> wide(ids.begin(), ids.end());
      const auto logits = model_->logits(torch::tensor(wide).unsqueeze(0));
      const auto next = logits[0][-1].argmax().item<int64_t>();
      if (next == kEos)
        break;
      ids.push_back(static_cast<int32_t>(next));
    }
    return ids;
  }
  std::string naive_text(const std::string& text) const {
    const auto ids = naive_ids(text);
    EXPECT_GT(ids.size(), size_t{16});
    return load_tokenizer("bytes")->decode(ids, {.skip_special_tokens = true});
  }

  testing::RunsFolder folder_;
  DecoderConfig decoder_;
  std::shared_ptr<DecoderModel> model_;
};

const ParallelDims kLayouts[] = {
    {},
    {.tp = 2},
    {.tp = 4},
    {.pp = 2},
    {.pp = 4},
    {.cp = 2},
    {.dp = 2},
    {.dp = 3},
    {.tp = 2, .pp = 2},
    {.dp = 2, .tp = 2, .pp = 2},
    {.tp = 2, .pp = 2, .cp = 2}};

TEST_P(GenerateLayouts, WriteTheLikeliestTextOnEveryRank) {
  const std::string expected = naive_text("Once");
  for (const ParallelDims& dims : kLayouts) {
    EXPECT_THAT(write_under(dims, options()), ::testing::Each(expected))
        << dims.product();
  }
}

TEST_P(GenerateLayouts, DrawTheSameTextFromTheSameSeed) {
  GenerateOptions drawing = options();
  drawing.temperature = 1.5;
  drawing.top_k = 50;
  drawing.top_p = 0.9;
  const std::string expected = write_under({}, drawing).front();
  EXPECT_NE(expected, naive_text("Once"));
  const ParallelDims layouts[] = {{.tp = 4}, {.dp = 2}, {.tp = 2, .pp = 2}};
  for (const ParallelDims& dims : layouts) {
    EXPECT_THAT(write_under(dims, drawing), ::testing::Each(expected))
        << dims.product();
  }
  drawing.seed = 43;
  EXPECT_NE(write_under({}, drawing).front(), expected);
}

// Prompts of several lengths together, against each one alone.
TEST_P(GenerateLayouts, ABatchWritesWhatEachPromptWritesAlone) {
  const std::vector<std::string> prompts = {
      "Once", "A", "There was a time", "Once upon", "Q"};
  GenerateOptions all = options();
  all.prompts = prompts;
  for (const double temperature : {0.0, 1.0}) {
    all.temperature = temperature;
    for (const int64_t batch : {1, 2, 5}) {
      all.batch = batch;
      for (const ParallelDims& dims :
           {ParallelDims{}, ParallelDims{.dp = 2, .tp = 2, .pp = 2}}) {
        const auto [texts, result] = write_all(dims, all);
        for (size_t i = 0; i < prompts.size(); ++i) {
          GenerateOptions alone = options();
          alone.prompts = prompts;
          alone.temperature = temperature;
          alone.batch = 1;
          if (temperature == 0) {
            EXPECT_EQ(texts[i], naive_text(prompts[i])) << i;
          } else {
            EXPECT_EQ(texts[i], write_all({}, alone).first[i]) << i;
          }
          EXPECT_EQ(
              result.texts[i].prompt_tokens,
              static_cast<int64_t>(prompt_ids(prompts[i]).size()));
        }
      }
    }
  }
}

// Whose frequencies a longer prompt beside it would change.
class GenerateWithDynamicRotary : public GenerateLayouts {};

TEST_P(GenerateWithDynamicRotary, ABatchWritesWhatEachPromptWritesAlone) {
  GenerateOptions all = options();
  all.prompts = {"A", "There was a time, once", "Q", "Once upon another time"};
  all.batch = 1;
  const auto alone = write_all({}, all).first;
  for (const int64_t batch : {2, 4}) {
    all.batch = batch;
    EXPECT_EQ(write_all({}, all).first, alone) << batch;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rotary,
    GenerateWithDynamicRotary,
    ::testing::Values("DynamicRotary"));

// A model that names other end tokens, as chat models do.
TEST_P(GenerateLayouts, EndAtTheTokensThatTheModelNames) {
  const std::vector<int32_t> ids = naive_ids("Once");
  const size_t prompt = prompt_ids("Once").size();
  const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(prompt);
  // Its third token now ends texts; an earlier one may be equal.
  const int32_t end = ids.at(prompt + 2);
  std::ofstream(path() / "generation_config.json")
      << "{\"eos_token_id\": [2, " << end << "]}";
  const GeneratedText ended = write_all({}, options()).second.texts[0];
  EXPECT_TRUE(ended.is_ended);
  EXPECT_EQ(ended.generated_tokens, std::find(begin, ids.end(), end) - begin);
}

// A NaN gives no text, and infinity would be the likeliest token forever.
TEST_P(GenerateLayouts, LogitsThatAreNotFiniteEndEveryRank) {
  for (const double value : {std::nan(""), HUGE_VAL}) {
    {
      const torch::NoGradGuard no_grad;
      model_->named_parameters()["model.norm.weight"][3] = value;
    }
    fs::remove_all(path());
    save();
    for (const double temperature : {0.0, 0.8}) {
      GenerateOptions one = options();
      one.temperature = temperature;
      one.max_tokens = 1;
      one.prompts = {"Once", "Once upon"};
      for (const ParallelDims& dims :
           {ParallelDims{}, ParallelDims{.dp = 2, .tp = 2, .pp = 2}}) {
        const TrainConfig config = inference_config(
            StoredModel({path()}),
            {{"distributed.dp_size=" + std::to_string(dims.dp)},
             {"distributed.tp_size=" + std::to_string(dims.tp)},
             {"distributed.pp_size=" + std::to_string(dims.pp)}},
            dims.world_size());
        std::vector<std::string> errors(static_cast<size_t>(dims.world_size()));
        testing::run_ranks_with_store(
            dims.world_size(), [&](int rank, const StorePtr& store) {
              const ProcessMesh mesh(dims, rank, store);
              errors[static_cast<size_t>(rank)] = message_of<NumericError>([&] {
                generate_text(
                    one, config, mesh, [](size_t, std::string_view) {});
              });
              mesh.world()->barrier();
            });
        EXPECT_THAT(
            errors,
            ::testing::Each(
                HasSubstr("behind token 5 of a text are not finite")))
            << dims.product() << " " << temperature;
      }
    }
  }
}

TEST_P(GenerateLayouts, CutTheLayersWhereTheUserSaysSo) {
  EXPECT_THAT(
      write_under({.pp = 3}, options(), {{"distributed.pp_layers=[0,3,1]"}}),
      ::testing::Each(naive_text("Once")));
}

TEST_P(GenerateLayouts, AreConfigErrorsWithTheNearestFitWhereTheyDoNotFit) {
  const StoredModel stored({path()});
  const auto complaint = [&](const std::string& text, int world_size) {
    return message_of<ConfigError>(
        [&] { inference_config(stored, {{text}}, world_size); });
  };
  EXPECT_THAT(
      complaint("distributed.tp_size=3", 3),
      ::testing::AllOf(
          HasSubstr("num_attention_heads"), HasSubstr("pp 3 * cp 1 * tp 1")));
  EXPECT_THAT(complaint("distributed.tp_size=2", 1), HasSubstr("--nproc 2"));
  EXPECT_THAT(complaint("training.seed=7", 1), HasSubstr("means nothing here"));
}

TEST_P(GenerateLayouts, RefuseValuesOutOfRangeAllAtOnce) {
  GenerateOptions wrong = options();
  wrong.max_tokens = -1;
  wrong.temperature = std::nan("");
  wrong.top_p = std::nan("");
  wrong.batch = 0;
  EXPECT_THAT(
      message_of<ConfigError>([&] { check_generate_options(wrong); }),
      ::testing::AllOf(
          HasSubstr("--max-tokens -1"),
          HasSubstr("--temperature nan"),
          HasSubstr("--batch 0"),
          HasSubstr("--top-p nan is not in (0, 1]")));
}

TEST_P(GenerateLayouts, WarnPastThePositionsForAnyNumberOfTokens) {
  GenerateOptions many = options();
  many.max_tokens = 2;
  EXPECT_THAT(generate_warnings(many), ::testing::IsEmpty());
  many.max_tokens = INT64_MAX;
  EXPECT_THAT(
      generate_warnings(many),
      ::testing::ElementsAre(HasSubstr("that the model was made for")));
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    GenerateLayouts,
    ::testing::Values("Untied", "Tied", "Experts"),
    [](const auto& test) { return test.param; });

}  // namespace
}  // namespace brigade
