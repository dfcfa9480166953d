// `brigade evaluate` and `generate` on a checkpoint whose tokenizer begins
// texts with <s>. The oracle is the model's own forward over the whole text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "brigade/checkpoint/save.h"
#include "brigade/data/loss_mask.h"
#include "brigade/data/token_dataset.h"
#include "brigade/model/decoder_model.h"
#include "brigade/model/init_weights.h"
#include "brigade/model_spec/parameter_table.h"
#include "tests/support/parsed_config.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

constexpr const char* kCharacters = "abcdefghijklmnopqrstuvwxyz .";
constexpr int64_t kVocabulary = 3 + 28;
constexpr int64_t kBegin = 1;
constexpr int64_t kPositions = 32;

// One token per character after <unk>, <s> and </s>, with Llama's template.
// Runs of spaces become one.
json character_tokenizer() {
  json vocab;
  json added = json::array();
  int id = 0;
  for (const char* special : {"<unk>", "<s>", "</s>"}) {
    vocab[special] = id;
    added.push_back(
        {{"id", id++},
         {"content", special},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}});
  }
  for (const char* c = kCharacters; *c != '\0'; ++c)
    vocab[std::string(1, *c)] = id++;
  return {
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer",
       {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", " "}}},
      {"pre_tokenizer", nullptr},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", json::array()},
        {"special_tokens",
         {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
      {"decoder", {{"type", "Fuse"}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"vocab", vocab},
        {"merges", json::array()}}}};
}

class EvaluateCommand : public ::testing::Test {
 protected:
  EvaluateCommand() {
    json config = testing::tiny_run("none")["model"]["config"];
    config["vocab_size"] = kVocabulary;
    config["max_position_embeddings"] = kPositions;
    config["initializer_range"] = 0.3;
    const DecoderConfig decoder = parsed_config(config);
    decoder_ = decoder;
    fs::create_directories(folder_ / "tokenizer");
    testing::write_file(
        folder_ / "tokenizer" / "tokenizer.json", character_tokenizer().dump());
    model_ = std::make_shared<DecoderModel>(
        std::make_shared<ModelContext>(single_rank_context(decoder)),
        whole_model(decoder));
    const torch::NoGradGuard no_grad;
    auto weights = model_->named_parameters();
    // bf16 values, so that both folders hold the same model.
    for (const ParameterRow& row : list_parameters(decoder))
      weights[row.name].copy_(
          initial_weight(row, 3).to(torch::kBFloat16).to(torch::kFloat));
    for (const auto& [name, dtype] :
         {std::pair("float32", torch::kFloat),
          std::pair("bfloat16", torch::kBFloat16)}) {
      CheckpointToSave checkpoint;
      for (const ParameterRow& row : list_parameters(decoder))
        checkpoint.weights.push_back(
            {.name = row.name, .tensor = weights[row.name].detach().to(dtype)});
      checkpoint.manifest.dtype = name;
      checkpoint.manifest.model = to_hugging_face_json(decoder, name);
      checkpoint.manifest.tokenizer = (folder_ / "tokenizer").string();
      save_checkpoint(folder_ / name, std::move(checkpoint), SaveRanks{});
    }
  }

  static Ids ids_of(const std::string& text) {
    Ids ids = {kBegin};
    for (const char c : text)
      ids.push_back(3 + static_cast<int64_t>(std::string(kCharacters).find(c)));
    return ids;
  }
  // -ln p of the tokens from `first` on.
  double nats(const Ids& ids, size_t first = 1) const {
    const torch::NoGradGuard no_grad;
    const auto logs = torch::log_softmax(
        model_->logits(torch::tensor(ids).unsqueeze(0))[0].to(torch::kDouble),
        -1);
    double sum = 0;
    for (size_t i = first; i < ids.size(); ++i)
      sum -= logs[static_cast<int64_t>(i) - 1][ids[i]].item<double>();
    return sum;
  }

  testing::ProgramResult run(
      const std::string& command,
      const std::string& model,
      const Arguments& more) const {
    Arguments arguments = {command, "--run", (folder_ / model).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto result = testing::run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  // The only result of `evaluate --json`.
  json evaluate(const Arguments& more, const std::string& model = "float32")
      const {
    Arguments arguments = more;
    arguments.emplace_back("--json");
    return json::parse(run("evaluate", model, arguments).out).front();
  }
  std::string write(const std::string& name, const std::string& text) const {
    testing::write_file(folder_ / name, text);
    return (folder_ / name).string();
  }

  testing::RunsFolder folder_;
  DecoderConfig decoder_;
  std::shared_ptr<DecoderModel> model_;
};

TEST_F(EvaluateCommand, ATextBeginsAsTheTokenizerSays) {
  const std::string text = "the cat sat on a mat.";
  const json result = evaluate({"--text", write("a.txt", text)});
  EXPECT_EQ(result.at("tokens"), text.size());
  EXPECT_NEAR(
      result.at("loss").get<double>() * static_cast<double>(text.size()),
      nats(ids_of(text)),
      1e-4);
  const auto generated =
      run("generate",
          "float32",
          {"--prompt", "the cat", "--max-tokens", "1", "--json"});
  EXPECT_EQ(json::parse(generated.out).at("prompt_tokens"), 8);
}

// The tokenizer may drop, change or add characters.
TEST_F(EvaluateCommand, BitsPerByteAreOfTheTextsBytes) {
  for (const std::string text :
       {"the cat", "the     cat   sat", "</s>the cat", "the \xc3\xa9 cat"}) {
    const json result = evaluate({"--text", write("a.txt", text)});
    EXPECT_NEAR(
        result.at("bits_per_byte").get<double>(),
        result.at("loss").get<double>() * result.at("tokens").get<double>() /
            std::log(2.0) / static_cast<double>(text.size()),
        1e-9)
        << text;
  }
  // The bytes of a part of the text are unknown.
  const json part =
      evaluate({"--text", write("a.txt", "the cat sat"), "--max-tokens", "5"});
  EXPECT_EQ(part.at("tokens"), 4);
  EXPECT_FALSE(part.contains("bits_per_byte"));
}

TEST_F(EvaluateCommand, ADatasetIsEvaluatedToItsLastToken) {
  const std::string text = "abcdefghijklmnopqrstuvwxyz.";
  testing::run_program(
      {"prepare",
       "-i",
       write("b.txt", text),
       "-t",
       (folder_ / "tokenizer").string(),
       "--prepend-bos",
       "--no-append-eos",
       "-o",
       (folder_ / "data").string()});
  const std::string data = (folder_ / "data").string();
  const Ids ids = ids_of(text);  // 28 with <s>
  for (const size_t length : {5, 9, 27, 32}) {
    double expected = 0;
    for (size_t begin = 0; begin + 1 < ids.size(); begin += length)
      expected += nats(
          {ids.begin() + static_cast<int64_t>(begin),
           ids.begin() +
               static_cast<int64_t>(std::min(ids.size(), begin + length + 1))});
    const json result =
        evaluate({"--dataset", data, "--seq-length", std::to_string(length)});
    EXPECT_EQ(result.at("tokens"), 27) << length;
    EXPECT_NEAR(result.at("loss").get<double>() * 27, expected, 1e-4) << length;
  }
  EXPECT_EQ(
      evaluate({"--dataset", data, "--seq-length", "5", "--max-tokens", "13"})
          .at("tokens"),
      12);
}

// Every third token counts, across window ends; then none does.
TEST_F(EvaluateCommand, EvaluatesTheTokensThatADatasetsMaskCounts) {
  const std::string text = "the cat sat on the mat it is";
  testing::run_program(
      {"prepare",
       "--input",
       write("text.txt", text),
       "--tokenizer",
       (folder_ / "tokenizer").string(),
       "--prepend-bos",
       "--no-append-eos",
       "-o",
       (folder_ / "data").string()});
  const Ids ids = ids_of(text);
  LossMaskWriter mask;
  LossMaskWriter none;
  for (size_t i = 0; i < ids.size(); ++i) {
    mask.append(i % 3 == 1);
    none.append(false);
  }
  mask.commit(folder_ / "data.mask");
  constexpr size_t kLength = 11;
  double expected = 0;
  int64_t tokens = 0;
  for (size_t i = 1; i < ids.size(); i += 3, ++tokens) {
    const auto begin = static_cast<int64_t>((i - 1) / kLength * kLength);
    const Ids before(
        ids.begin() + begin, ids.begin() + static_cast<int64_t>(i) + 1);
    expected += nats(before, before.size() - 1);
  }
  const std::string data = (folder_ / "data").string();
  const json result =
      evaluate({"--dataset", data, "--seq-length", std::to_string(kLength)});
  EXPECT_EQ(result.at("tokens"), tokens);
  EXPECT_NEAR(
      result.at("loss").get<double>() * static_cast<double>(tokens),
      expected,
      1e-4);
  none.commit(folder_ / "data.mask");
  const auto refused = testing::run_program(
      {"evaluate", "--run", (folder_ / "float32").string(), "--dataset", data});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("none counts in the loss"));
}

// Conversations without being asked, other documents with --by-document.
TEST_F(EvaluateCommand, ADocumentIsReadWithoutThoseBeforeIt) {
  const std::string chat = (folder_ / "chat").string();
  const std::string texts = (folder_ / "texts").string();
  const std::string tokenizer = (folder_ / "tokenizer").string();
  testing::run_program(
      {"prepare",
       "--chat",
       write(
           "chat.jsonl",
           R"({"prompt": "the cat", "completion": " sat"})"
           "\n"
           R"({"prompt": "a", "completion": " mat is here"})"
           "\n"
           R"({"prompt": "on the mat it", "completion": " is"})"
           "\n"),
       "--tokenizer",
       tokenizer,
       "--out",
       chat});
  testing::run_program(
      {"prepare",
       "--input",
       write(
           "texts.jsonl",
           R"({"text": "the cat sat"})"
           "\n"
           R"({"text": "a"})"
           "\n"
           R"({"text": "on the mat"})"
           "\n"),
       "--tokenizer",
       tokenizer,
       "--no-append-eos",
       "--out",
       texts});
  const auto by_document = [&](const std::string& name, uint64_t most) {
    const TokenDataset data = TokenDataset::open(name);
    double sum = 0;
    int64_t tokens = 0;
    for (uint64_t d = 0; d < data.documents().size(); ++d) {
      const uint64_t begin = data.documents().begin(d);
      const uint64_t end = std::min(data.documents().begin(d + 1), most);
      for (uint64_t i = begin + 1; i < end; ++i) {
        if (!data.counts(i))
          continue;
        Ids before(i - begin + 1);
        data.read(begin, before);
        sum += nats(before, before.size() - 1);
        ++tokens;
      }
    }
    return std::pair(sum, tokens);
  };
  const auto expect = [&](const Arguments& more,
                          std::pair<double, int64_t> by) {
    const json result = evaluate(more);
    const auto tokens = result.at("tokens").get<int64_t>();
    EXPECT_EQ(tokens, by.second);
    EXPECT_NEAR(
        result.at("loss").get<double>() * static_cast<double>(tokens),
        by.first,
        1e-4);
  };
  expect({"--dataset", chat}, by_document(chat, 1000));
  expect({"--dataset", chat, "--by-document"}, by_document(chat, 1000));
  expect({"--dataset", chat, "--max-tokens", "20"}, by_document(chat, 20));
  expect({"--dataset", texts, "--by-document"}, by_document(texts, 1000));
  expect(
      {"--dataset", texts, "--by-document", "--nproc", "2"},
      by_document(texts, 1000));
  expect(
      {"--dataset", chat, "--max-tokens", "20", "--nproc", "2"},
      by_document(chat, 20));
  // Windows on request, in which documents see those before them.
  const json windows = evaluate({"--dataset", chat, "--seq-length", "32"});
  EXPECT_EQ(windows.at("tokens"), by_document(chat, 1000).second);
  EXPECT_NE(windows.at("loss"), evaluate({"--dataset", chat}).at("loss"));
  const auto refusal = [&](const Arguments& more) {
    Arguments arguments = {"evaluate", "--run", (folder_ / "float32").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = testing::run_program(arguments);
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(
      refusal({"--dataset", chat, "--batch", "2"}),
      HasSubstr("--batch 2: the documents of '" + chat + "' are evaluated"));
  EXPECT_THAT(
      refusal({"--dataset", texts, "--by-document", "--batch", "2"}),
      HasSubstr("leave it out, or leave --by-document out"));
  EXPECT_THAT(
      refusal({"--dataset", chat, "--by-document", "--seq-length", "8"}),
      HasSubstr("excludes"));
  testing::run_program(
      {"prepare",
       "--chat",
       write(
           "long.jsonl",
           R"({"prompt": "a", "completion": " cat"})"
           "\n"
           R"({"prompt": "abcdefghijklmnopqrstuvwxyz", "completion": )"
           R"("abcdefghijklmnopqrstuvwxyz"})"
           "\n"),
       "--tokenizer",
       tokenizer,
       "--overwrite",
       "--out",
       chat});
  EXPECT_THAT(
      refusal({"--dataset", chat}),
      AllOf(
          HasSubstr("chat': document 1 has "),
          HasSubstr("but the model can score 2 to 33; prepare conversations "
                    "with --max-tokens, or evaluate windows")));
  EXPECT_THAT(
      refusal({"--dataset", chat, "--by-document"}),
      HasSubstr("can score 2 to 33; leave --by-document out"));
}

TEST_F(EvaluateCommand, TwoResultsOfOneNameAreRefusedBeforeTheWork) {
  const std::string text = write("a.txt", "the cat");
  const std::string task =
      write("a.jsonl", R"({"context": "the c", "choices": ["at"], "gold": 0})");
  for (const Arguments& twice :
       {Arguments{"--task", task, "--task", task},
        Arguments{"--text", text, "--dataset", text}}) {
    Arguments arguments = {
        "evaluate", "--json", "--run", (folder_ / "absent").string()};
    arguments.insert(arguments.end(), twice.begin(), twice.end());
    const auto refused = testing::run_program(arguments);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(
        refused.err, HasSubstr("would have the name '" + twice.back() + "'"));
  }
}

TEST_F(EvaluateCommand, ATaskPrintsWhatItsKindHas) {
  const std::string choices = write(
      "choices.jsonl",
      R"({"context": "the c", "choices": ["at", "ow"], "gold": 0})"
      "\n"
      R"({"context": "", "choices": ["at", "ow"], "gold": 0})");
  const std::string scores = (folder_ / "scores").string();
  const json of_choices = evaluate({"--task", choices, "--scores", scores});
  EXPECT_EQ(of_choices.at("requests"), 2);
  EXPECT_TRUE(of_choices.contains("accuracy_normalized"));
  EXPECT_FALSE(of_choices.contains("perplexity"));
  std::istringstream lines(testing::read_file(scores));
  for (const std::string context : {"the c", ""}) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const json found = json::parse(line);
    for (const size_t i : {0, 1}) {
      const std::string choice = i == 0 ? "at" : "ow";
      EXPECT_NEAR(
          found.at(i).at("log_likelihood").get<double>(),
          -nats(ids_of(context + choice), context.size() + 1),
          1e-4);
    }
  }
  const auto shown = run("evaluate", "float32", {"--task", choices});
  EXPECT_THAT(shown.out, ::testing::Not(HasSubstr("perplexity")));

  const std::string word = write(
      "word.jsonl", R"({"context": "the", "choices": [" cat"], "gold": 0})");
  EXPECT_NEAR(
      std::log(evaluate({"--task", word}).at("perplexity").get<double>()),
      nats(ids_of("the cat"), 4),
      1e-4);
  EXPECT_THAT(
      run("evaluate", "float32", {"--task", word}).out,
      HasSubstr("perplexity"));
}

// The text has more tokens than positions. <s> is predicted from <s>, as the
// harness does.
TEST_F(EvaluateCommand, TextsOfATaskAreScoredInRollingWindows) {
  const std::string text = "abcdefghijklmnopqrstuvwxyz.abcdefghijkl";
  const std::string task =
      write("texts.jsonl", json{{"text", text}}.dump() + "\n");
  Ids ids = ids_of(text);
  ids.insert(ids.begin(), kBegin);
  const double expected = nats({ids.begin(), ids.begin() + kPositions + 1}) +
                          nats(
                              {ids.end() - kPositions - 1, ids.end()},
                              2 * kPositions + 2 - ids.size());
  const std::string scores = (folder_ / "scores").string();
  const json result = evaluate({"--task", task, "--scores", scores});
  EXPECT_NEAR(
      json::parse(testing::read_file(scores))
          .at(0)
          .at("log_likelihood")
          .get<double>(),
      -expected,
      1e-3);
  EXPECT_NEAR(
      result.at("bits_per_byte").get<double>(),
      expected / std::log(2.0) / static_cast<double>(text.size()),
      1e-5);
  EXPECT_NEAR(
      result.at("word_perplexity").get<double>() / std::exp(expected), 1, 1e-3);
}

// The embedding of one letter is not finite.
TEST_F(EvaluateCommand, ALossThatIsNotFiniteIsAnErrorThatNamesItsPlace) {
  DecoderConfig decoder = decoder_;
  decoder.tie_word_embeddings = false;
  CheckpointToSave checkpoint;
  for (const ParameterRow& row : list_parameters(decoder)) {
    const torch::Tensor weight = initial_weight(row, 3);
    if (row.name == "model.embed_tokens.weight")
      weight[ids_of("z")[1]].fill_(std::numeric_limits<float>::infinity());
    checkpoint.weights.push_back({.name = row.name, .tensor = weight});
  }
  checkpoint.manifest.dtype = "float32";
  checkpoint.manifest.model = to_hugging_face_json(decoder, "float32");
  checkpoint.manifest.tokenizer = (folder_ / "tokenizer").string();
  save_checkpoint(folder_ / "infinite", std::move(checkpoint), SaveRanks{});
  const auto failure = [&](const Arguments& more) {
    Arguments arguments = {
        "evaluate", "--run", (folder_ / "infinite").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = testing::run_program(arguments);
    EXPECT_EQ(result.exit_code, 5) << result.out;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_THAT(
      failure(
          {"--text",
           write("a.txt", "the cat sat on a zoo"),
           "--seq-length",
           "4",
           "--batch",
           "2"}),
      HasSubstr("loss of windows 4 to 4 of 4 tokens, counted from 0, is not"));
  EXPECT_THAT(
      failure(
          {"--task",
           write(
               "task.jsonl",
               R"({"context": "the c", "choices": ["at", "ow"], "gold": 0})"
               "\n"
               R"({"context": "the z", "choices": ["at", "oo"], "gold": 0})")}),
      HasSubstr("the log-probability of choice 0 of request 1 is not finite"));
  EXPECT_THAT(
      failure(
          {"--task",
           write(
               "texts.jsonl",
               R"({"text": "the cat"})"
               "\n"
               R"({"text": "zoo"})")}),
      HasSubstr("the log-probability of text 1 is not finite"));
}

TEST_F(EvaluateCommand, Float32OnRequest) {
  const std::string text = write("a.txt", "the cat sat on a mat.");
  const json exact = evaluate({"--text", text});
  EXPECT_EQ(
      evaluate({"--text", text, "--dtype", "float32"}, "bfloat16"), exact);
  EXPECT_EQ(
      evaluate({"--text", text, "model.dtype=float32"}, "bfloat16"), exact);
  const json rounded = evaluate({"--text", text}, "bfloat16");
  EXPECT_NE(rounded.at("loss"), exact.at("loss"));
  EXPECT_EQ(
      evaluate({"--text", text, "--dtype", "bfloat16"}).at("loss"),
      rounded.at("loss"));
  const Arguments greedy = {"--prompt", "a", "-t", "0", "-n", "12"};
  Arguments in_float32 = greedy;
  in_float32.insert(in_float32.end(), {"--dtype", "float32"});
  EXPECT_EQ(
      run("generate", "bfloat16", in_float32).out,
      run("generate", "float32", greedy).out);
}

}  // namespace
}  // namespace brigade
