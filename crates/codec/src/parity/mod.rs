//! RAID-Z parity: generation, check, and reconstruction of up to three missing columns (OpenZFS
//! `module/zfs/vdev_raidz.c` states the same arithmetic).
//!
//! A row has n data columns D₀…Dₙ₋₁ and one to three parity columns, byte by byte over GF(2⁸) ([`field`]):
//!
//! ```text
//!   P = Σ Dᵢ          Q = Σ 2ⁿ⁻¹⁻ⁱ·Dᵢ          R = Σ 4ⁿ⁻¹⁻ⁱ·Dᵢ
//! ```
//!
//! Data columns need not be equally long (the later ones of a RAID-Z row are a sector shorter): a shorter column is
//! extended with zeros. Parity is as long as the longest data column.
//!
//! *Reconstruction.* k missing columns are the unknowns of k parity equations. The inverse of their k×k matrix gives
//! each missing column as a weighted sum of the parities used and the columns present. So generation and
//! reconstruction are the same operation, weighted sums of columns ([`kernel`]).
//!
//! This module cannot tell corrupt columns from good ones; the block's checksum does. The caller omits suspect
//! columns and reconstructs again.

pub mod field;
mod kernel;

use crate::error::CodecError;
use kernel::{Input, combine};

/// Maximum number of parity columns of a row.
pub const MAX_PARITY: usize = 3;
/// Maximum number of data columns: their factors must be distinct.
pub const MAX_DATA: usize = 255;

/// Factor of data column `column` of `columns` in parity `parity` (0 P, 1 Q, 2 R).
fn factor(parity: usize, columns: usize, column: usize) -> u8 {
    field::power(1 << parity, columns - 1 - column)
}

/// Computes the first `parity.len()` parity columns of `data`. A parity column longer than all data columns ends in
/// zeros.
///
/// # Errors
/// [`CodecError::Columns`] unless there are 1–3 parities and 1–255 data columns, none longer than a parity.
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), CodecError> {
    let longest = data.iter().map(|d| d.len()).max().unwrap_or(0);
    let problem = if data.is_empty() || data.len() > MAX_DATA {
        Some("1 to 255 data columns required")
    } else if parity.is_empty() || parity.len() > MAX_PARITY {
        Some("1 to 3 parity columns required")
    } else if parity.iter().any(|p| p.len() < longest) {
        Some("a data column is longer than its parity")
    } else {
        None
    };
    if let Some(problem) = problem {
        return Err(columns(data.len(), parity.len(), 0, problem));
    }
    let inputs: Vec<Input<'_>> = data
        .iter()
        .enumerate()
        .map(|(i, bytes)| Input { bytes, factors: std::array::from_fn(|p| factor(p, data.len(), i)) })
        .collect();
    combine(&inputs, parity);
    Ok(())
}

/// Whether the given parity columns (in the order P, Q, R; `None` is skipped) match `data`.
///
/// # Errors
/// As for [`generate`].
pub fn check(data: &[&[u8]], parity: &[Option<&[u8]>]) -> Result<bool, CodecError> {
    let longest = data.iter().map(|d| d.len()).max().unwrap_or(0);
    if parity.iter().flatten().any(|p| p.len() < longest) {
        return Err(columns(data.len(), parity.len(), 0, "a data column is longer than its parity"));
    }
    let longest = parity.iter().flatten().map(|p| p.len()).fold(longest, usize::max);
    let mut fresh = vec![vec![0; longest]; parity.len()];
    let mut rows: Vec<&mut [u8]> = fresh.iter_mut().map(|row| &mut row[..]).collect();
    generate(data, &mut rows)?;
    Ok(parity.iter().zip(&fresh).all(|(given, made)| given.is_none_or(|g| made.starts_with(g))))
}

/// Rebuilds missing data columns.
///
/// `data` are the row's data columns in order, `None` where missing; `parity` the row's parity columns P, Q, R,
/// `None` where missing or not to be used; `missing` the buffers for the missing data columns in order, each of its
/// column's length. The first parity columns present are used. The caller computes missing parity columns with
/// [`generate`] afterwards.
///
/// # Errors
/// [`CodecError::Columns`] if there are fewer parity columns than missing columns, the number of buffers differs from
/// that of the missing columns, or a column is longer than the parity.
pub fn reconstruct(
    data: &[Option<&[u8]>],
    parity: &[Option<&[u8]>],
    missing: &mut [&mut [u8]],
) -> Result<(), CodecError> {
    let gaps: Vec<usize> = (0..data.len()).filter(|&i| data[i].is_none()).collect();
    let used: Vec<(usize, &[u8])> =
        parity.iter().enumerate().filter_map(|(p, bytes)| bytes.map(|b| (p, b))).take(gaps.len()).collect();
    let shortest = used.iter().map(|u| u.1.len()).min().unwrap_or(0);
    let longest = data.iter().flatten().map(|d| d.len()).chain(missing.iter().map(|m| m.len())).max().unwrap_or(0);
    let problem = if data.is_empty() || data.len() > MAX_DATA {
        Some("1 to 255 data columns required")
    } else if parity.len() > MAX_PARITY {
        Some("1 to 3 parity columns required")
    } else if gaps.len() != missing.len() {
        Some("the number of buffers differs from that of missing columns")
    } else if gaps.len() > used.len() {
        Some("more missing columns than parity columns")
    } else if !gaps.is_empty() && longest > shortest {
        Some("a data column is longer than its parity")
    } else {
        None
    };
    let error = |problem| columns(data.len(), parity.iter().flatten().count(), gaps.len(), problem);
    if let Some(problem) = problem {
        return Err(error(problem));
    }
    if gaps.is_empty() {
        return Ok(());
    }
    let mut matrix = [[0; 3]; 3];
    for (row, (p, _)) in used.iter().enumerate() {
        for (column, gap) in gaps.iter().enumerate() {
            matrix[row][column] = factor(*p, data.len(), *gap);
        }
    }
    let inverse =
        field::invert(matrix, gaps.len()).ok_or(error("the parity columns do not determine the missing columns"))?;
    let mut inputs = Vec::with_capacity(data.len() + used.len());
    for (row, (_, bytes)) in used.iter().enumerate() {
        inputs.push(Input { bytes, factors: std::array::from_fn(|out| inverse[out][row]) });
    }
    for (i, bytes) in data.iter().enumerate() {
        let Some(bytes) = bytes else { continue };
        let weight = |out: usize| {
            let terms = used.iter().enumerate();
            terms.fold(0, |sum, (row, (p, _))| sum ^ field::mul(inverse[out][row], factor(*p, data.len(), i)))
        };
        inputs
            .push(Input { bytes, factors: std::array::from_fn(|out| if out < gaps.len() { weight(out) } else { 0 }) });
    }
    combine(&inputs, missing);
    Ok(())
}

fn columns(data: usize, parity: usize, missing: usize, problem: &'static str) -> CodecError {
    CodecError::Columns { data_columns: data, parity_columns: parity, missing_columns: missing, problem }
}

#[cfg(test)]
mod tests;
