#include "brigade/data/table_stream.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string>

#include "brigade/base/error.h"
#include "brigade/data/prepare.h"
#include "brigade/data/text_tokens.h"
#include "brigade/data/token_dataset.h"
#include "tests/data/data_test_files.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A Python with PyArrow, or "".
std::string find_python() {
  const char* const named = std::getenv("BRIGADE_PEERS_PYTHON");
  for (const std::string& python :
       {std::string(named == nullptr ? "" : named),
        std::string("python3"),
        std::string(BRIGADE_SOURCE_DIR "/build/venv-ecosystem/bin/python")}) {
    const std::string command =
        "'" + python + "' -c 'import pyarrow' 2>/dev/null";
    if (!python.empty() && std::system(command.c_str()) == 0)
      return python;
  }
  return {};
}

class TableTest : public DataTest {
 protected:
  // The stream's whole output, in reads of an odd size.
  static std::string rows(
      const std::filesystem::path& path,
      const TableOptions& options) {
    const auto stream = open_table(path, options);
    std::string text;
    char piece[1000];
    while (const size_t count = stream->read(piece, sizeof(piece)))
      text.append(piece, count);
    return text;
  }
  static std::string refusal(
      const std::filesystem::path& path,
      const TableOptions& options) {
    return message_of<Error>([&] { rows(path, options); });
  }
  std::filesystem::path script(
      const std::string& name,
      const std::string& text) {
    const auto path = write(name, "#!/bin/sh\n" + text);
    ::chmod(path.c_str(), 0700);
    return path;
  }
  // Bytes that begin and end as a parquet file does.
  std::filesystem::path some_parquet() {
    return write(
        "x.parquet", std::string("PAR1") + std::string(4, '\0') + "PAR1");
  }
};

TEST_F(TableTest, AFileThatIsNoParquetOrIsCutOffIsRefusedWithTheOffset) {
  EXPECT_THAT(
      refusal(write("a.parquet", "PK\3\4 something else"), {}),
      HasSubstr("a.parquet] at byte 0: not a parquet file"));
  EXPECT_THAT(refusal(write("e.parquet", ""), {}), HasSubstr("not a parquet"));
  EXPECT_THAT(
      refusal(write("b.parquet", "PAR1" + std::string(40, 'x')), {}),
      HasSubstr("b.parquet] at byte 40: the parquet file is cut off"));
  EXPECT_THAT(
      refusal(write("c.parquet", "PAR1\xff\xff\xff\x7fPAR1"), {}),
      HasSubstr("c.parquet] at byte 4: a footer of 2147483647 bytes"));
}

TEST_F(TableTest, WithoutPyArrowTheErrorSaysWhatToDo) {
  const auto path = some_parquet();
  EXPECT_THAT(
      refusal(path, {.python = folder_ / "absent"}),
      AllOf(HasSubstr("there is no program"), HasSubstr("--python")));
  EXPECT_THAT(
      refusal(path, {.python = script("without", "exit 4\n")}),
      AllOf(HasSubstr("has no PyArrow"), HasSubstr("pip install pyarrow")));
}

TEST_F(TableTest, ReportsHowTheOtherProcessEnds) {
  const auto path = some_parquet();
  EXPECT_EQ(
      rows(path, {.python = script("good", "echo '{\"a\":\"b\"}'\n")}),
      "{\"a\":\"b\"}\n");
  EXPECT_THAT(
      refusal(
          path, {.python = script("wrong", "printf 'a reason' >&2; exit 3")}),
      HasSubstr("x.parquet] a reason"));
  EXPECT_THAT(
      refusal(path, {.python = script("dies", "echo row; kill -9 $$")}),
      HasSubstr("ended with signal 9"));
  EXPECT_THAT(
      refusal(path, {.python = script("fails", "echo trace >&2; exit 1")}),
      AllOf(HasSubstr("ended with exit code 1"), Not(HasSubstr("trace"))));
  EXPECT_THROW(
      rows(path, {.python = script("memory", "exit 5")}), std::bad_alloc);
}

// A process that never stops writing ends with the stream.
TEST_F(TableTest, AStreamThatIsNotReadToItsEndLeavesNoProcess) {
  const auto python = script("endless", "echo $$; exec yes");
  char text[16] = {};
  {
    const auto stream = open_table(some_parquet(), {.python = python});
    ASSERT_EQ(stream->read(text, 15), 15U);
  }
  EXPECT_NE(::kill(std::atoi(text), 0), 0);
}

class PyArrowTest : public TableTest {
 protected:
  void SetUp() override {
    if (python_.empty())
      GTEST_SKIP() << "no Python with PyArrow";
  }
  static void SetUpTestSuite() { python_ = find_python(); }

  // Runs a program that has pa, pq, json and `folder`.
  void make(const std::string& program) {
    const auto path = write(
        "make.py",
        "import json, sys\nimport pyarrow as pa, pyarrow.parquet as pq\n"
        "folder = sys.argv[1] + '/'\n" +
            program);
    const std::string command = "'" + python_ + "' '" + path.string() + "' '" +
                                folder_.path().string() + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  std::vector<int64_t> prepared(
      const std::filesystem::path& input,
      BadLines bad_lines = BadLines::kRefuse) {
    PrepareOptions options;
    options.inputs = {input};
    options.out_prefix = folder_ / "out" / input.filename();
    options.tokenizer = "bytes";
    options.num_workers = 2;
    options.text.python = python_;
    options.bad_lines = bad_lines;
    result_ = prepare(options);
    const auto dataset = TokenDataset::open(options.out_prefix);
    std::vector<int64_t> tokens(dataset.num_tokens());
    dataset.read(0, tokens);
    return tokens;
  }
  std::string prepare_refusal(const std::string& name) {
    return message_of<Error>([&] { prepared(folder_ / name); });
  }

  static std::string python_;
  PrepareResult result_;
};

std::string PyArrowTest::python_;

TEST_F(PyArrowTest, GivesTheDocumentsOfTheSameJsonLines) {
  make(R"(
texts = [f'row {i}: "é"\n\\ 🚒 \u2028' * (i % 7) for i in range(1000)]
with open(folder + 'a.jsonl', 'w') as file:
    for text in texts:
        print(json.dumps({'text': text}), file=file)
table = pa.table({'id': list(range(1000)), 'text': texts})
large = table.set_column(1, 'text', table['text'].cast(pa.large_string()))
words = table.set_column(1, 'text', table['text'].dictionary_encode())
for name, each in ('plain', table), ('large', large), ('words', words):
    for codec in 'snappy', 'zstd', 'gzip', 'none':
        pq.write_table(each, f'{folder}{name}_{codec}.parquet',
                       row_group_size=300, compression=codec,
                       data_page_version='2.0' if codec == 'zstd' else '1.0')
with pa.OSFile(folder + 'stream.arrow', 'wb') as file:
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
with pa.OSFile(folder + 'file.arrow', 'wb') as file:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
)");
  const auto expected = prepared(folder_ / "a.jsonl");
  const auto counts = result_.info.sources.at(0).documents;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (!is_table(entry.path()))
      continue;
    SCOPED_TRACE(entry.path());
    EXPECT_EQ(prepared(entry.path()), expected);
    EXPECT_EQ(result_.info.sources.at(0).documents, counts);
    ++files;
  }
  EXPECT_EQ(files, 14);
}

TEST_F(PyArrowTest, AFolderGivesItsShardsInOrderAndCountsOtherFiles) {
  make(R"(
import os
os.makedirs(folder + 'set/data')
for i in 1, 0:
    pq.write_table(pa.table({'text': [f'{i}']}),
                   f'{folder}set/data/train-0000{i}-of-00002.parquet')
)");
  write("set/README.md", "about it");
  EXPECT_THAT(
      prepared(folder_ / "set"), ::testing::ElementsAre('0', 257, '1', 257));
  EXPECT_EQ(result_.skipped.count, 1U);
}

TEST_F(PyArrowTest, ColumnsAndRowsThatAreNoTextAreNamed) {
  make(R"(
def put(name, **columns):
    pq.write_table(pa.table(columns), folder + name, row_group_size=2)
put('absent.parquet', id=[1], body=['a'])
put('number.parquet', text=[1])
put('nested.parquet', text=[['a']])
put('binary.parquet', text=[b'a'])
put('null.parquet', text=['a', 'b', 'c', None, 'e'])
bad = pa.StringArray.from_buffers(2, pa.array([0, 1, 2], pa.int32()).buffers()[1],
                                  pa.py_buffer(b'a\xff'))
put('utf8.parquet', text=bad)
)");
  EXPECT_THAT(
      prepare_refusal("absent.parquet"),
      AllOf(
          HasSubstr("absent.parquet] there is no column 'text'"),
          HasSubstr("--column (dataset.text_key) names"),
          HasSubstr("id, body")));
  for (const char* name :
       {"number.parquet", "nested.parquet", "binary.parquet"})
    EXPECT_THAT(
        prepare_refusal(name),
        AllOf(
            HasSubstr(std::string(name) + "] the column 'text' holds"),
            HasSubstr("not text")));
  EXPECT_THAT(
      prepare_refusal("null.parquet"),
      HasSubstr("null.parquet] row group 1, row 1: column 'text' is null"));
  EXPECT_THAT(
      prepare_refusal("utf8.parquet"),
      HasSubstr(
          "utf8.parquet] row group 0, row 1: column 'text' is not UTF-8"));
  EXPECT_EQ(prepared(folder_ / "null.parquet", BadLines::kSkip).size(), 8U);
  EXPECT_EQ(result_.bad_lines, 1U);
  EXPECT_THAT(result_.first_bad_lines.at(0), HasSubstr("row group 1, row 1"));
}

TEST_F(PyArrowTest, DamageNamesTheRowGroup) {
  make(R"(
texts = [str(i) * 50 for i in range(100)]
pq.write_table(pa.table({'text': texts}), folder + 'a.parquet',
               row_group_size=50, use_dictionary=False, compression='none')
data = bytearray(open(folder + 'a.parquet', 'rb').read())
begin = pq.read_metadata(folder + 'a.parquet').row_group(1).column(0).data_page_offset
data[begin:begin + 16] = b'\xff' * 16
open(folder + 'page.parquet', 'wb').write(data)
)");
  EXPECT_THAT(
      prepare_refusal("page.parquet"),
      AllOf(
          HasSubstr("page.parquet] row group 1, column 'text'"),
          HasSubstr("damaged"),
          Not(HasSubstr("Thrift"))));
}

// Whole rows are damaged too, except where it would crash PyArrow.
TEST_F(PyArrowTest, FilesThatAreDamagedAnywhereAreReadOrRefused) {
  make("rows = '" BRIGADE_SOURCE_DIR
       "/brigade/data/table_rows.py'\n"
       R"(
import os, random
code = compile(open(rows).read(), rows, 'exec')
kind = pa.list_(pa.struct({'role': pa.string(), 'content': pa.string()}))
table = pa.table({
    'text': [f'{i} é' * (i % 9) for i in range(100)],
    'messages': pa.array(
        [[{'role': 'user', 'content': 'a' * i}, {'role': 'x', 'content': None}]
         for i in range(100)], kind)})
def made(name):
    path = folder + name
    if name == 'x.parquet':
        pq.write_table(table, path, row_group_size=30)
        return path
    start = pa.ipc.new_file if name == 'file.arrow' else pa.ipc.new_stream
    with pa.OSFile(path, 'wb') as file, start(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    return path
def exit_code(path, column):
    child = os.fork()
    if child == 0:
        try:
            for stream in 1, 2:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            sys.argv = [rows, path, column]
            exec(code, {})
        except SystemExit as end:
            os._exit(end.code)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
for name in 'x.parquet', 'file.arrow', 'stream.arrow':
    whole = open(made(name), 'rb').read()
    ends = set()
    for seed in range(60):
        draw = random.Random(seed)
        data = bytearray(whole)
        for _ in range(seed % 4 * 5):
            data[draw.randrange(len(data))] = draw.randrange(256)
        if seed % 4 == 0:
            del data[draw.randrange(len(data)):]
        open(folder + name, 'wb').write(data)
        for column in 'text', '':
            end = exit_code(folder + name, column)
            assert end in (0, 3, 5), (name, seed, column, end)
            ends.add(end)
    assert 3 in ends, name
)");
}

TEST_F(PyArrowTest, TextThatIsTrainedOnMayBeATable) {
  make(R"(
pq.write_table(pa.table({'text': [f'row {i} é' * (i % 5) for i in range(500)]}),
               folder + 'x.parquet', row_group_size=100)
)");
  TextTokens tokens(
      {.paths = {folder_ / "x.parquet"},
       .tokenizer = "bytes",
       .python = python_},
      {.folder = folder_ / "cache"});
  const auto dataset = tokens.wait_for_all().dataset;
  std::vector<int64_t> read(dataset->num_tokens());
  dataset->read(0, read);
  EXPECT_EQ(read, prepared(folder_ / "x.parquet"));
}

TEST_F(PyArrowTest, WholeRowsKeepNestedColumns) {
  make(R"(
pq.write_table(pa.table({
    'messages': [[{'role': 'user', 'content': 'a\nb'}, {'role': 'x', 'content': None}]],
    'score': [float('nan')]}), folder + 'chat.parquet')
)");
  EXPECT_EQ(
      rows(folder_ / "chat.parquet", {.column = "", .python = python_}),
      R"({"messages":[{"role":"user","content":"a\nb"},{"role":"x","content":null}],"score":null})"
      "\n");
}

// Members of a struct column that are null count as absent: otherwise every
// message would call tools.
TEST_F(PyArrowTest, ConversationsOfATableAreThoseOfTheSameLines) {
  make(R"(
chats = [[{'role': 'user', 'content': f'{i} é\n'},
          {'role': 'assistant', 'content': 'x' * i}] for i in range(300)]
full = [[dict(m, tool_calls=None, name=None) for m in chat] for chat in chats]
call = pa.list_(pa.struct({'name': pa.string()}))
kind = pa.list_(pa.struct({'role': pa.string(), 'content': pa.string(),
                           'tool_calls': call, 'name': pa.string()}))
pq.write_table(pa.table({'id': list(range(300)),
                         'messages': pa.array(full, kind)}),
               folder + 'chat.parquet', row_group_size=100)
with open(folder + 'chat.jsonl', 'w') as file:
    for chat in chats:
        print(json.dumps({'messages': chat}), file=file)
bad = full[:2] + [[{'role': None, 'content': 'x'}]]
pq.write_table(pa.table({'messages': pa.array(bad, kind)}),
               folder + 'bad.parquet')
)");
  write(
      "t.jinja",
      "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}");
  const auto tokens = [&](const std::string& name) {
    PrepareOptions options;
    options.inputs = {folder_ / name};
    options.out_prefix = folder_ / ("of_" + name);
    options.tokenizer = "bytes";
    options.text.python = python_;
    options.chat = PrepareChatOptions{};
    options.chat->template_file = folder_ / "t.jinja";
    const PrepareResult result = prepare(options);
    EXPECT_EQ(result.info.num_documents, 299U);  // in one no token counts
    const auto dataset = TokenDataset::open(options.out_prefix);
    std::vector<int64_t> read(dataset.num_tokens());
    dataset.read(0, read);
    read.push_back(static_cast<int64_t>(result.counting_tokens));
    return read;
  };
  EXPECT_EQ(tokens("chat.parquet"), tokens("chat.jsonl"));
  EXPECT_THAT(
      message_of<Error>([&] { tokens("bad.parquet"); }),
      HasSubstr("bad.parquet] at row 2: /messages/0 has no role"));
}

}  // namespace
}  // namespace brigade
