//! Sort options `-s` and `-S`, whose order on the command line counts.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

/// Field to sort by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortField {
    /// Name as given.
    pub name: String,
    /// Largest value first (`-S`).
    pub descends: bool,
}

/// Fields to sort by, most significant first.
#[derive(Clone, Debug, Default)]
pub struct SortFields(pub Vec<SortField>);

const ASCENDING: &str = "sort_ascending";
const DESCENDING: &str = "sort_descending";

impl Args for SortFields {
    fn augment_args(command: Command) -> Command {
        let option = |id: &'static str, letter: char, help: &'static str| {
            Arg::new(id).short(letter).value_name("FIELD").action(ArgAction::Append).help(help)
        };
        command
            .arg(option(ASCENDING, 's', "Sort by this field, smallest first; further fields decide between equal rows"))
            .arg(option(DESCENDING, 'S', "Sort by this field, largest first; further fields decide between equal rows"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SortFields {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut fields: Vec<(usize, SortField)> = Vec::new();
        for (id, descends) in [(ASCENDING, false), (DESCENDING, true)] {
            let names = matches.get_many::<String>(id).into_iter().flatten();
            let places = matches.indices_of(id).into_iter().flatten();
            fields.extend(places.zip(names.map(|name| SortField { name: name.clone(), descends })));
        }
        fields.sort_by_key(|(place, _)| *place);
        Ok(SortFields(fields.into_iter().map(|(_, field)| field).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
