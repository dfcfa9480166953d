// brigade create-config, with picotron's own command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "program.h"

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CreateConfig : public ProgramTest {
 protected:
  CreateConfig() {
    std::filesystem::create_directory(folder_ / "model");
    std::ofstream(folder_ / "model" / "config.json") << R"({
      "architectures": ["LlamaForCausalLM"], "vocab_size": 1000,
      "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2,
      "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
      "rope_theta": 10000.0, "tie_word_embeddings": true})";
  }

  int run(std::vector<std::string> arguments) {
    arguments.insert(
        arguments.begin(),
        {"create-config",
         "--out_dir",
         (folder_ / "configs").string(),
         "--exp_name",
         "test",
         "--model_name",
         (folder_ / "model").string()});
    return exit_code(start(arguments));
  }
  json written() const {
    return json::parse(
        read_if_there(folder_ / "configs" / "test" / "config.json"));
  }
};

TEST_F(CreateConfig, TakesPicotronsOptionsAndSaysWhatTheyComeTo) {
  ASSERT_EQ(
      run(
          {"--tp",
           "2",
           "--cp",
           "1",
           "--pp",
           "2",
           "--dp",
           "2",
           "--mbs",
           "3",
           "--grad_acc_steps",
           "4",
           "--seq_len",
           "128",
           "--pp_engine",
           "afab",
           "--num_hidden_layers",
           "6",
           "--use_wandb",
           "--use_cpu",
           "--use_fused_adam",
           "--subset_name",
           "en",
           "dataset.name=data/x"}),
      0)
      << err();
  // 2 * 3 * 4 sequences of 128 tokens.
  EXPECT_THAT(
      out(),
      AllOf(
          HasSubstr("= 8 ranks"),
          HasSubstr("24 sequences, 3072 tokens per step"),
          HasSubstr("memory per rank    at most 0."),
          HasSubstr("brigade train --config"),
          HasSubstr("--nproc 8")));
  const json config = written();
  EXPECT_EQ(config["distributed"]["tp_size"], 2);
  EXPECT_EQ(config["distributed"]["pp_engine"], "afab");
  EXPECT_EQ(config["training"]["gradient_accumulation_steps"], 4);
  EXPECT_EQ(config["model"]["num_hidden_layers"], 6);
  EXPECT_EQ(config["dataset"]["name"], "data/x");
  EXPECT_EQ(config["logging"]["run_name"], "test");
}

TEST_F(CreateConfig, DefaultsArePicotrons) {
  ASSERT_EQ(run({}), 0) << err();
  const json config = written();
  EXPECT_EQ(config["training"]["seq_length"], 1024);
  EXPECT_EQ(config["training"]["micro_batch_size"], 1);
  EXPECT_EQ(config["distributed"]["pp_engine"], "1f1b");
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("warning: training.seq_length = 1024 is more than"),
          HasSubstr("warning: no dataset is named")));
}

TEST_F(CreateConfig, RefusesWhatTrainWouldAndWritesNothing) {
  EXPECT_EQ(run({"--tp", "3", "--mbs", "1"}), 2);
  EXPECT_THAT(err(), HasSubstr("num_attention_heads"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "configs"));
}

TEST_F(CreateConfig, AnExistingConfigIsReplacedOnlyIfAsked) {
  ASSERT_EQ(run({"--mbs", "2"}), 0);
  EXPECT_EQ(run({}), 2);
  EXPECT_THAT(err(), HasSubstr("--overwrite"));
  EXPECT_EQ(written()["training"]["micro_batch_size"], 2);
  ASSERT_EQ(run({"--overwrite"}), 0);
  EXPECT_EQ(written()["training"]["micro_batch_size"], 1);
}

}  // namespace
}  // namespace brigade
