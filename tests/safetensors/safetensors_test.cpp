#include "brigade/safetensors/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/safetensors/header.h"
#include "brigade/safetensors/writer.h"
#include "tests/support/raw_file.h"
#include "tests/support/write_safetensors.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::ThrowsMessage;

#if defined(__SANITIZE_ADDRESS__)  // gcc
constexpr bool kAddressSanitizer = true;
#elif defined(__has_feature)  // clang
constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
constexpr bool kAddressSanitizer = false;
#endif

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The message with which the bytes of a whole file are refused.
std::string refusal(const std::string& file) {
  try {
    parse_safetensors_header(as_bytes(file), "some.safetensors");
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'some.safetensors'"));
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::string& header, const std::string& data) {
  return refusal(raw_safetensors(header, data));
}

// One U8 tensor as a member of a header.
std::string u8(const std::string& name, uint64_t begin, uint64_t end) {
  return fmt::format(
      R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
      name,
      end - begin,
      begin,
      end);
}

TEST(Safetensors, ReadsTensorsScalarsAndEmptyShapes) {
  const TemporaryFolder folder;
  write_bytes(
      folder / "a",
      raw_safetensors(
          R"({"__metadata__":{"format":"pt","k\u00e9y":"\n"},)"
          R"("m":{"dtype":"I16","shape":[2,1],"data_offsets":[0,4]},)"
          R"("none":{"dtype":"F64","shape":[3,0],"data_offsets":[4,4]},)"
          R"( "s" : {"shape":[],"data_offsets":[4,8],"dtype":"F32"} }   )",
          "abcdefgh"));
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.at("m").dtype, SafetensorsDtype::kI16);
  EXPECT_THAT(file.at("m").shape, ElementsAre(2, 1));
  EXPECT_EQ(as_text(file.at("m").data), "abcd");
  EXPECT_THAT(file.at("none").shape, ElementsAre(3, 0));
  EXPECT_TRUE(file.at("none").data.empty());
  EXPECT_THAT(file.at("s").shape, IsEmpty());
  EXPECT_EQ(as_text(file.at("s").data), "efgh");
  EXPECT_THAT(
      file.metadata(), ElementsAre(Pair("format", "pt"), Pair("kéy", "\n")));
  EXPECT_EQ(file.find("x"), nullptr);
  EXPECT_THAT(
      [&] { file.at("x"); },
      ThrowsMessage<DataError>(
          AllOf(HasSubstr("'x'"), HasSubstr((folder / "a").string()))));
}

TEST(Safetensors, LeadingWhiteSpaceIsTolerated) {
  EXPECT_EQ(refusal(" \t\r\n{" + u8("a", 0, 1) + "}", "x"), "accepted");
}

TEST(Safetensors, AnEmptyHeaderHoldsNoTensors) {
  EXPECT_EQ(refusal("{}", ""), "accepted");
}

TEST(Safetensors, MetadataMayBeNull) {
  EXPECT_EQ(
      refusal(R"({"__metadata__":null,)" + u8("a", 0, 1) + "}", "x"),
      "accepted");
}

TEST(Safetensors, EveryDtypeOfTheFormatIsRead) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"F4", "[4]"},  // 4 bits each
      {"F6_E2M3", "[4]"},
      {"F6_E3M2", "[4]"},  // 6 bits each
      {"F8_E8M0", "[2]"},
      {"F8_E4M3FNUZ", "[2]"},
      {"F8_E5M2FNUZ", "[2]"},
      {"C64", "[2]"}};
  const size_t bytes[] = {2, 3, 3, 2, 2, 2, 16};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string header = fmt::format(
        R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})",
        cases[i].first,
        cases[i].second,
        bytes[i]);
    EXPECT_EQ(refusal(header, std::string(bytes[i], 'x')), "accepted");
  }
  EXPECT_THAT(
      refusal(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", "x"),
      HasSubstr("F4 [3] end within a byte"));
}

TEST(Safetensors, AFileTooShortForItsLengthIsRefused) {
  EXPECT_THAT(refusal("1234567"), HasSubstr("7 bytes are too few"));
}

TEST(Safetensors, AHugeHeaderIsRefusedByItsLength) {
  for (const uint64_t length :
       {uint64_t{100'000'001}, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    EXPECT_THAT(
        refusal(little_endian(length) + "{}"),
        AllOf(
            HasSubstr("byte 0"),
            HasSubstr(std::to_string(length)),
            HasSubstr("100000000")));
  }
}

TEST(Safetensors, AHeaderLongerThanTheFileIsRefused) {
  EXPECT_THAT(
      refusal(little_endian(3) + "{}"),
      AllOf(HasSubstr("length at byte 0 is 3"), HasSubstr("only 10 bytes")));
}

TEST(Safetensors, AHoleIsRefusedByNameAndOffset) {
  const std::string header = "{" + u8("a", 0, 2) + "," + u8("b", 3, 4) + "}";
  EXPECT_THAT(
      refusal(header, "xxxx"),
      AllOf(
          HasSubstr("'b' begins at byte 3"),
          HasSubstr("a hole"),
          HasSubstr(fmt::format("(at byte {})", 8 + header.size() + 2))));
}

TEST(Safetensors, AFirstTensorThatDoesNotBeginAtZeroIsRefused) {
  EXPECT_THAT(
      refusal("{" + u8("a", 1, 2) + "}", "xx"),
      AllOf(HasSubstr("'a' begins at byte 1"), HasSubstr("a hole")));
}

TEST(Safetensors, AnOverlapIsRefusedByNameAndOffset) {
  EXPECT_THAT(
      refusal("{" + u8("a", 0, 3) + "," + u8("b", 2, 4) + "}", "xxxx"),
      AllOf(
          HasSubstr("'b' begins at byte 2"),
          HasSubstr("ends at 3: an overlap")));
}

TEST(Safetensors, BytesAfterTheLastTensorAreRefused) {
  EXPECT_THAT(
      refusal("{" + u8("a", 0, 1) + "}", "xy"),
      HasSubstr("there are bytes after the last tensor"));
}

TEST(Safetensors, ATruncatedFileIsRefused) {
  EXPECT_THAT(
      refusal("{" + u8("a", 0, 9) + "}", "short"), HasSubstr("cut short"));
}

TEST(Safetensors, ShapesThatOverflowAreRefusedByName) {
  for (const char* shape :
       {"[4294967296,4294967296]",
        "[9223372036854775807,3]",
        "[4611686018427387904]",  // times 8 bytes
        "[2,18446744073709551615]"}) {
    EXPECT_THAT(
        refusal(
            fmt::format(
                R"({{"w":{{"dtype":"F64","shape":{},"data_offsets":[0,0]}}}})",
                shape),
            ""),
        AllOf(HasSubstr("tensor 'w'"), HasSubstr(shape), HasSubstr("overflow")))
        << shape;
  }
}

TEST(Safetensors, AnOverflowBeforeAZeroDimIsRefusedToo) {
  EXPECT_THAT(
      refusal(
          R"({"w":{"dtype":"U8","shape":[4294967296,4294967296,0],)"
          R"("data_offsets":[0,0]}})",
          ""),
      HasSubstr("overflow"));
}

TEST(Safetensors, OffsetsThatDoNotHoldTheShapeAreRefused) {
  for (const char* offsets : {"[0,7]", "[0,9]", "[8,0]"}) {
    EXPECT_THAT(
        refusal(
            fmt::format(
                R"({{"w":{{"dtype":"F32","shape":[2],"data_offsets":{}}}}})",
                offsets),
            "12345678"),
        AllOf(HasSubstr("tensor 'w'"), HasSubstr("8 bytes of F32 [2]")));
  }
}

TEST(Safetensors, ANumberAbove64BitsIsRefusedWithItsOffset) {
  EXPECT_THAT(
      refusal(
          R"({"w":{"dtype":"U8","shape":[18446744073709551616],)"
          R"("data_offsets":[0,0]}})",
          ""),
      AllOf(HasSubstr("above 2^64 - 1"), HasSubstr("(at byte 36)")));
}

TEST(Safetensors, DuplicateNamesAreRefusedHoweverTheyAreSpelled) {
  EXPECT_THAT(
      refusal("{" + u8("dup", 0, 1) + "," + u8("dup", 1, 2) + "}", "xx"),
      HasSubstr("tensor 'dup' is there twice, at bytes 0 and 1"));
  EXPECT_THAT(
      refusal("{" + u8("dup", 0, 1) + "," + u8(R"(d\u0075p)", 1, 2) + "}", "x"),
      HasSubstr("tensor 'dup' is there twice"));
  EXPECT_THAT(
      refusal(R"({"__metadata__":{},"__metadata__":{}})", ""),
      HasSubstr("__metadata__ is there twice"));
  EXPECT_THAT(
      refusal(
          R"({"w":{"dtype":"U8","dtype":"I8","shape":[],)"
          R"("data_offsets":[0,1]}})",
          "x"),
      HasSubstr("tensor 'w': dtype is there twice"));
}

TEST(Safetensors, MalformedHeadersAreRefusedWithTheirOffset) {
  const auto entry = [](const char* body) {
    return fmt::format(R"({{"w":{{{}}}}})", body);
  };
  EXPECT_THAT(refusal("", ""), HasSubstr("'{' should come (at byte 8)"));
  EXPECT_THAT(refusal("[]", ""), HasSubstr("holds '[' where '{'"));
  EXPECT_THAT(refusal("{}x", ""), HasSubstr("'x' after its end"));
  EXPECT_THAT(refusal(R"({"a)", ""), HasSubstr("no end (at byte 11)"));
  EXPECT_THAT(refusal("{\"a\x01\"}", ""), HasSubstr("control byte 0x01"));
  EXPECT_THAT(
      refusal("{\"a\xff\"}", ""), HasSubstr("0xff, which is not UTF-8"));
  EXPECT_THAT(
      refusal("{\"\xc0\x80\"}", ""), HasSubstr("0xc0, which is not UTF-8"));
  EXPECT_THAT(
      refusal("{\"\xed\xa0\x80\"}", ""), HasSubstr("0xed, which is not UTF-8"));
  EXPECT_THAT(refusal(R"({"\x"})", ""), HasSubstr("unknown escape"));
  EXPECT_THAT(refusal(R"({"\u12"})", ""), HasSubstr("four hex digits"));
  EXPECT_THAT(refusal(R"({"\ud800"})", ""), HasSubstr("surrogate"));
  EXPECT_THAT(refusal(R"({"w":3})", ""), HasSubstr("'3' where '{'"));
  EXPECT_THAT(refusal("{" + u8("a", 0, 0) + ",}", ""), HasSubstr("'}' where"));
  EXPECT_THAT(
      refusal(entry(R"("dtype":"F31")"), ""),
      HasSubstr("tensor 'w': dtype 'F31' is unknown"));
  EXPECT_THAT(
      refusal(entry(R"("shape":[-1])"), ""), HasSubstr("unsigned integer"));
  EXPECT_THAT(
      refusal(entry(R"("shape":[1.0])"), ""),
      HasSubstr("not a plain unsigned integer"));
  EXPECT_THAT(
      refusal(entry(R"("shape":[01])"), ""),
      HasSubstr("not a plain unsigned integer"));
  EXPECT_THAT(
      refusal(entry(R"("shape":[1])"), ""),
      HasSubstr("tensor 'w' lacks dtype"));
  EXPECT_THAT(
      refusal(entry(R"("strides":[1])"), ""),
      HasSubstr("tensor 'w': unknown key 'strides'"));
  EXPECT_THAT(
      refusal(entry(R"("data_offsets":[1])"), ""), HasSubstr("']' where ','"));
  EXPECT_THAT(
      refusal(R"({"__metadata__":{"format":1}})", ""),
      HasSubstr("'1' where '\"'"));
}

TEST(Safetensors, LongHostileNamesAreCutInMessages) {
  const std::string name(100'000, 'n');
  EXPECT_LT(refusal("{\"" + name + "\":{\"x\":1}}", "").size(), 500U);
}

// Headers that would make a JSON tree of a gigabyte, parsed by a child that may
// allocate 16 MiB: more is a bad_alloc.
TEST(Safetensors, AHostileHeaderCostsAtMost16MiBBesidesItself) {
  if (kAddressSanitizer)
    GTEST_SKIP() << "AddressSanitizer's own memory would count";
  // Large blocks come from the system each time, never from free heap space
  // left by this test, which would hide what the parser takes.
  ::mallopt(M_MMAP_THRESHOLD, 128 * KiB);
  constexpr size_t kHeaderBytes = 20'000'000;
  const auto repeated = [](const std::string& start, auto item) {
    std::string header = start;
    for (size_t i = 0; header.size() < kHeaderBytes; ++i)
      header += item(i);
    return header;
  };
  const std::vector<std::string> headers = {
      repeated(
          "{",
          [](size_t i) {
            return fmt::format(
                R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)",
                i);
          }),
      repeated(R"({"w":{"dtype":"U8","shape":[)", [](size_t) { return "0,"; }),
      repeated(
          R"({"__metadata__":{)",
          [](size_t i) { return fmt::format(R"("{}":"",)", i); }),
      repeated(
          "{",
          [](size_t i) {
            return fmt::format(R"("{}\n":{{"dtype":"U8",)", i) +
                   R"("shape":[0],"data_offsets":[0,0]},)";
          }),
      "{\"" + std::string(kHeaderBytes, 'n') + "\":",
      "{\"" + repeated("", [](size_t) { return R"(\n)"; }) + "\":",
      std::string(kHeaderBytes, '['),
      std::string(kHeaderBytes, ' '),
  };
  const TemporaryFolder folder;
  for (const std::string& header : headers) {
    write_bytes(folder / "hostile", raw_safetensors(header, ""));
    const pid_t child = ::fork();
    if (child == 0) {
      struct rlimit limit {};
      ::getrlimit(RLIMIT_DATA, &limit);
      std::ifstream statm("/proc/self/statm");
      uint64_t pages[6] = {};
      for (uint64_t& value : pages)
        statm >> value;
      limit.rlim_cur =
          pages[5] * static_cast<uint64_t>(::getpagesize()) + 16 * MiB;
      ::setrlimit(RLIMIT_DATA, &limit);
      try {
        SafetensorsFile file(folder / "hostile");
        ::_exit(1);
      } catch (const DataError&) {
        ::_exit(0);
      } catch (const std::bad_alloc&) {
        ::_exit(2);
      }
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << header.substr(0, 40);
    EXPECT_EQ(WEXITSTATUS(status), 0) << header.substr(0, 40);
  }
}

TEST(SafetensorsWriter, WritesTheBytesThatTheFormatGives) {
  const TemporaryFolder folder;
  const std::string b = "bb", a = "aaaaaaaa", c = "cccc";
  write_safetensors(
      folder / "f",
      {{.name = "b",
        .dtype = SafetensorsDtype::kBF16,
        .shape = {1},
        .data = as_bytes(b)},
       {.name = "c",
        .dtype = SafetensorsDtype::kF32,
        .shape = {},
        .data = as_bytes(c)},
       {.name = "a",
        .dtype = SafetensorsDtype::kF32,
        .shape = {2, 1},
        .data = as_bytes(a)}});
  std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("c":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[12,14]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_text_file(folder / "f"), raw_safetensors(header, a + c + b));
}

TEST(SafetensorsWriter, AFileThatIsNotCommittedIsNotThere) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(
        folder / "f",
        {{.name = "a", .dtype = SafetensorsDtype::kU8, .shape = {2}}});
    writer.write_next(as_bytes("xy"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

class PythonRoundTrip : public ::testing::Test {
 protected:
  // The independent reader and writer, plain Python.
  static int python(const std::string& arguments) {
    return std::system(fmt::format(
                           "python3 '{}/tests/safetensors/reference.py' {}",
                           BRIGADE_SOURCE_DIR,
                           arguments)
                           .c_str());
  }
  const TemporaryFolder folder_;
};

std::vector<TensorSpec> random_specs(std::mt19937& random) {
  constexpr SafetensorsDtype kDtypes[] = {
      SafetensorsDtype::kF64,
      SafetensorsDtype::kF32,
      SafetensorsDtype::kBF16,
      SafetensorsDtype::kF16,
      SafetensorsDtype::kI64,
      SafetensorsDtype::kU8,
      SafetensorsDtype::kBool};
  std::vector<TensorSpec> specs(random() % 20);
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].name =
        fmt::format("t{}.\"wéight\"\n", (i * 7) % specs.size() + i * 100);
    specs[i].dtype = kDtypes[random() % std::size(kDtypes)];
    for (size_t rank = random() % 4; rank > 0; --rank)
      specs[i].shape.push_back(random() % 5);
  }
  return specs;
}

TEST_F(PythonRoundTrip, AnIndependentReaderAndWriterAgree) {
  std::mt19937 random(7);
  for (int round = 0; round < 4; ++round) {
    const auto specs = random_specs(random);
    std::vector<std::string> data;
    std::vector<TensorToWrite> tensors;
    data.reserve(specs.size());
    for (const TensorSpec& spec : specs) {
      std::string& bytes = data.emplace_back(size_bytes(spec), '\0');
      for (char& byte : bytes)
        byte = static_cast<char>(random());
      tensors.push_back({spec.name, spec.dtype, spec.shape, as_bytes(bytes)});
    }
    write_safetensors(folder_ / "ours", tensors, {{"a", "b"}, {"é", "\"\n"}});
    // Reads ours, checks every rule of the format, writes it again.
    ASSERT_EQ(
        python(fmt::format(
            "rewrite '{}' '{}'",
            (folder_ / "ours").string(),
            (folder_ / "theirs").string())),
        0);
    const SafetensorsFile theirs(folder_ / "theirs");
    ASSERT_EQ(theirs.tensors().size(), tensors.size());
    EXPECT_THAT(
        theirs.metadata(), ElementsAre(Pair("a", "b"), Pair("é", "\"\n")));
    for (const TensorToWrite& tensor : tensors) {
      const SafetensorsTensor& read = theirs.at(tensor.name);
      EXPECT_EQ(read.dtype, tensor.dtype);
      EXPECT_EQ(read.shape, tensor.shape);
      EXPECT_EQ(as_text(read.data), as_text(tensor.data));
    }
  }
}

}  // namespace
}  // namespace brigade
