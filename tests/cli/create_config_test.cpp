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
using ::testing::Not;

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
          HasSubstr(" MiB: weights "),
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

TEST_F(CreateConfig, WarnsOfWhatIsHardlyMeant) {
  ASSERT_EQ(run({}), 0) << err();
  EXPECT_THAT(
      err(),
      AllOf(
          HasSubstr("warning: /training/seq_length = 1024 is more than"),
          HasSubstr("warning: no dataset is named")));
}

// Every option of create_config.py's parser, with its default where it is a
// value of the config (picotron at commit 59714b1).
struct PicotronOption {
  const char* name;
  const char* given;    // "": a flag
  const char* pointer;  // in config.json; "": not there
  json by_default;
};
const PicotronOption kPicotronOptions[] = {
    {"--out_dir", "configs", "", nullptr},
    {"--tp", "2", "/distributed/tp_size", 1},
    {"--cp", "2", "/distributed/cp_size", 1},
    {"--dp", "2", "/distributed/dp_size", 1},
    {"--pp", "2", "/distributed/pp_size", 1},
    {"--pp_engine", "afab", "/distributed/pp_engine", "1f1b"},
    {"--model_name",
     "model",
     "/model/name",
     "HuggingFaceTB/SmolLM-360M-Instruct"},
    {"--num_hidden_layers", "8", "/model/num_hidden_layers", nullptr},
    {"--num_attention_heads", "8", "/model/num_attention_heads", nullptr},
    {"--num_key_value_heads", "4", "/model/num_key_value_heads", nullptr},
    {"--grad_acc_steps", "2", "/training/gradient_accumulation_steps", 1},
    {"--mbs", "2", "/training/micro_batch_size", 1},
    {"--seq_len", "256", "/training/seq_length", 1024},
    {"--subset_name", "en", "/dataset/subset_name", nullptr},
    {"--exp_name", "all", "/logging/run_name", "dummy_exp"},
    {"--use_wandb", "", "/logging/use_wandb", nullptr},
    {"--use_cpu", "", "/distributed/use_cpu", nullptr},
    {"--use_fused_adam", "", "/model/use_fused_adam", nullptr},
    {"--hf_token", "hf_secret", "", nullptr}};

TEST_F(CreateConfig, TakesEveryOptionOfPicotrons) {
  std::vector<std::string> line = {"create-config"};
  for (const PicotronOption& option : kPicotronOptions) {
    line.emplace_back(option.name);
    const std::string given = option.given;
    if (given == "configs" || given == "model")
      line.push_back((folder_ / given).string());
    else if (!given.empty())
      line.push_back(given);
  }
  ASSERT_EQ(exit_code(start(line)), 0) << err();
  const auto path = folder_ / "configs" / "all" / "config.json";
  const json config = json::parse(read_if_there(path));
  for (const PicotronOption& option : kPicotronOptions) {
    if (std::string(option.pointer).empty())
      continue;
    const json value = config.at(json::json_pointer(option.pointer));
    EXPECT_NE(value, option.by_default) << option.name;
    EXPECT_FALSE(value.is_null()) << option.name;
  }
  EXPECT_EQ(config["distributed"]["backend"], "gloo");  // with use_cpu
  EXPECT_THAT(read_if_there(path), Not(HasSubstr("hf_secret")));
  EXPECT_THAT(err(), HasSubstr("--hf_token is not written"));
}

TEST_F(CreateConfig, DefaultsArePicotrons) {
  ASSERT_EQ(
      exit_code(start_program(
          "bash",
          {"-c",
           "cd $T && HF_HUB_OFFLINE=1 HF_HOME=$T exec \"$0\" create-config",
           kProgram})),
      0)
      << err();
  const json config =
      json::parse(read_if_there(folder_ / "tmp" / "dummy_exp" / "config.json"));
  for (const PicotronOption& option : kPicotronOptions) {
    if (std::string(option.pointer).empty())
      continue;
    EXPECT_EQ(
        config.value(json::json_pointer(option.pointer), json()),
        option.by_default)
        << option.name;
  }
  EXPECT_THAT(out(), HasSubstr("memory per rank    not known"));
}

// picotron's template/base_config.json, for a model of 4 layers.
TEST_F(CreateConfig, StartsFromPicotronsTemplate) {
  const std::string base = folder_ / "base_config.json";
  json file = json::parse(R"({
    "distributed": {"tp_size": 1, "cp_size": 1, "pp_size": 1, "dp_size": 1,
      "pp_engine": "1f1b", "backend": "nccl", "use_cpu": false},
    "model": {"name": "HuggingFaceTB/SmolLM-360M-Instruct",
      "num_hidden_layers": 16, "num_attention_heads": 16,
      "num_key_value_heads": 4, "dtype": "bfloat16",
      "use_flash_attention": true, "use_fused_adam": true},
    "training": {"seed": 42, "learning_rate": 3e-4, "total_train_steps": 200,
      "seq_length": 1024, "micro_batch_size": 32,
      "gradient_accumulation_steps": 1, "num_samples": 400000,
      "max_tokens": null},
    "dataset": {"name": "roneneldan/TinyStories", "subset_name": null,
      "num_workers": 0, "num_proc": 1},
    "checkpoint": {"save_dir": "ckpt", "save_frequency": 300,
      "load_path": ""},
    "logging": {"use_wandb": false, "project_name": "picotron",
      "run_name": null},
    "environment": {"OMP_NUM_THREADS": "1",
      "TOKENIZERS_PARALLELISM": "false", "FLASH_ATTEN": "1",
      "HF_TOKEN": null}})");
  std::ofstream(base) << file.dump();
  ASSERT_EQ(run({"--template", base, "--use_cpu", "--seq_len", "64"}), 0)
      << err();
  const json config = written();
  EXPECT_EQ(config["distributed"]["backend"], "gloo");
  // The number of layers is left to the model, as create_config.py does.
  EXPECT_FALSE(config["model"].contains("num_hidden_layers"));
  EXPECT_EQ(config["training"]["micro_batch_size"], 1);
  EXPECT_EQ(config["training"]["learning_rate"], 3e-4);
  EXPECT_EQ(config["dataset"]["name"], "roneneldan/TinyStories");
  EXPECT_EQ(config["checkpoint"]["save_frequency"], 300);
  // Two runs must not save into one folder.
  EXPECT_FALSE(config["checkpoint"].contains("save_dir"));

  // Brigade's own keys stay unless an option sets them.
  file["distributed"]["zero_stage"] = 1;
  file["dataset"].erase("name");
  file["dataset"]["mixture"] = {{{"name", "a"}, {"weight", 1}}};
  std::ofstream(base) << file.dump();
  ASSERT_EQ(
      run({"--template", base, "--use_cpu", "--seq_len", "64", "--overwrite"}),
      0)
      << err();
  EXPECT_EQ(written()["distributed"]["zero_stage"], 1);
  ASSERT_EQ(
      run(
          {"--template",
           base,
           "--use_cpu",
           "--seq_len",
           "64",
           "--zero_stage",
           "0",
           "--overwrite"}),
      0)
      << err();
  EXPECT_EQ(written()["distributed"]["zero_stage"], 0);
}

TEST_F(CreateConfig, ATemplatesOwnModelStaysUnlessAnotherIsNamed) {
  const std::string base = folder_ / "base.json";
  json file;
  file["model"] = {
      {"config", json::parse(read_if_there(folder_ / "model/config.json"))},
      {"num_hidden_layers", 2}};
  std::ofstream(base) << file.dump();
  const auto start_with = [&](std::vector<std::string> more) {
    more.insert(
        more.begin(),
        {"create-config",
         "--out_dir",
         (folder_ / "configs").string(),
         "--exp_name",
         "test",
         "--overwrite",
         "--template",
         base,
         "--seq_len",
         "64"});
    return exit_code(start(more));
  };
  ASSERT_EQ(start_with({"model.config.vocab_size=2000"}), 0) << err();
  EXPECT_EQ(written()["model"]["config"]["vocab_size"], 2000);
  EXPECT_EQ(written()["model"]["num_hidden_layers"], 2);
  EXPECT_EQ(written()["model"].size(), 2U);
  ASSERT_EQ(start_with({"--model_name", (folder_ / "model").string()}), 0)
      << err();
  EXPECT_FALSE(written()["model"].contains("config"));
}

TEST_F(CreateConfig, ATemplateThatIsNoConfigIsExitCode2) {
  const std::string base = folder_ / "base.json";
  const std::pair<const char*, const char*> cases[] = {
      {"[1, 2]", "expected an object with the groups"},
      {R"({"dataset": "x"})", "/dataset"},
      {R"({"distributed": {"dpsize": 2}})", "dp_size"},
      {"{\"dataset\": ", "base.json:1:"}};
  for (const auto& [text, expected] : cases) {
    std::ofstream(base) << text;
    EXPECT_EQ(run({"--template", base}), 2) << text;
    EXPECT_THAT(err(), HasSubstr(expected));
  }
  EXPECT_THAT(err(), Not(HasSubstr("json.exception")));
}

TEST_F(CreateConfig, MoreRanksThanThereCanBeAreRefused) {
  EXPECT_EQ(run({"--dp", "65536", "--tp", "65536"}), 2);
  EXPECT_THAT(err(), HasSubstr("more than 1048576 ranks"));
}

TEST_F(CreateConfig, ALayoutIsGivenInOnePlace) {
  EXPECT_EQ(run({"distributed.dp_size=4"}), 2);
  EXPECT_THAT(err(), HasSubstr("give it as --dp 4"));
}

TEST_F(CreateConfig, OverridesAreWrittenAsTheyWereRead) {
  ASSERT_EQ(
      run(
          {"dataset.subset_name=null",
           "logging.run_name=2024",
           "distributed.pp_engine=afab",
           "training.learning_rate=1e-3"}),
      0)
      << err();
  EXPECT_TRUE(written()["dataset"]["subset_name"].is_null());
  EXPECT_EQ(written()["logging"]["run_name"], "2024");
  EXPECT_EQ(written()["training"]["learning_rate"], 1e-3);
  EXPECT_THAT(out(), HasSubstr("ranks, afab,"));
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
